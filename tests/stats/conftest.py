import pytest

from lpwm.core.errors import UserError


@pytest.fixture
def one_sentence():
    """one_sentence(call) -> the message of its error, which is a single sentence."""

    def check(call):
        with pytest.raises(UserError) as caught:
            call()
        message = str(caught.value)
        assert message.endswith(".") and "\n" not in message and ". " not in message
        return message

    return check
