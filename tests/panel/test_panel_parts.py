import pytest

from memecmd_utils.chats.messages import ChatError
from memecmd_utils.panel import widgets
from memecmd_utils.panel.widgets import Knob


def test_a_knob_keeps_its_value_through_the_browsers_rounding() -> None:
    knob = Knob(1 / 3, -1.0, 1.0, 2, "w")
    knob.slider.value = 0.33  # what a browser makes of a third
    assert knob.value == 1 / 3
    for step, expected in ((0.34, 0.34), (0.32, 0.32), (0.30000000000000004, 0.3), (0.0, 0.0)):
        knob.slider.value = step
        assert knob.value == expected
    knob.slider.value = 0.33
    assert knob.value == 1 / 3


def test_faults_of_a_callback_are_shown_and_raised() -> None:
    class Tab:
        note = type("Note", (), {"value": "old"})()

        @widgets.shows_faults
        def press(self, fault: Exception | None) -> None:
            if fault is not None:
                raise fault

    tab = Tab()
    tab.press(ChatError("write <b>this</b>"))  # the reader's to mend
    assert "write &lt;b&gt;this&lt;/b&gt;" in tab.note.value and "mc-error" in tab.note.value
    tab.press(None)
    assert tab.note.value == ""
    with pytest.raises(KeyError):
        tab.press(KeyError("<i>"))
    assert "KeyError" in tab.note.value and "<i>" not in tab.note.value
