"""The one exception that is the user's to mend: a line saying what was expected, what came and what to do."""


class UserError(ValueError):
    """Bad input. The command line prints it as one line and exits with 2; Python users catch a ValueError."""


class Diverged(UserError):
    """The chain left the numbers: the step is too large for this model and data."""
