import pytest
from pydantic import ValidationError

from memecmd_utils.settings import Endpoint, Endpoints, Filters, Judge


def test_unknown_keys_are_refused_at_every_depth() -> None:
    for kind, values in ((Endpoint, {"modle": "x"}), (Filters, {"min_sides": 3}), (Judge, {"kind": "rate"})):
        with pytest.raises(ValidationError):
            kind.model_validate(values)
    with pytest.raises(ValidationError, match="judges"):
        Endpoints.model_validate({"judges": [{"modle": "x"}]})


def test_yes_and_no_are_no_numbers() -> None:
    with pytest.raises(ValidationError, match="yes and no are no values"):
        Filters.model_validate({"min_side": True})
    assert Filters.model_validate({"needs_text": True}).needs_text


def test_an_address_never_holds_a_password() -> None:
    for url in ("https://user:secret@host/v1", "https://host/v1?key=secret", "ftp://host"):
        with pytest.raises(ValidationError):
            Endpoint(base_url=url)
    assert Endpoint(base_url="http://127.0.0.1:8000/v1").base_url


def test_parameters_that_are_mapped_to_nothing_are_dropped() -> None:
    endpoint = Endpoint(parameters={"temperature": None, "max_tokens": "max_completion_tokens"})
    assert endpoint.dropped == {"temperature"}
