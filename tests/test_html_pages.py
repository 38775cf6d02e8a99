import jinja2
import pytest

from memecmd_utils import html_pages


def test_values_are_escaped_and_a_missing_one_is_an_error() -> None:
    page = html_pages.environment(loud=str.upper).from_string("<p>{{ text | loud }}</p>\n")
    assert page.render(text="<b>x</b>") == "<p>&lt;B&gt;X&lt;/B&gt;</p>\n"
    with pytest.raises(jinja2.UndefinedError):
        html_pages.environment().from_string("{{ text }}").render()


def test_every_html_template_is_found_there() -> None:
    names = html_pages.environment().list_templates(filter_func=lambda name: name.endswith(".html.j2"))
    pages = {"index.html.j2", "contact_sheet.html.j2", "form.html.j2", "inserted_chat.html.j2"}
    assert pages <= set(names)
