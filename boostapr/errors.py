"""Errors that are meant for the person who reads them."""


class UserError(Exception):
    """Something the user can put right: the message says what is wrong, where, and what to do about it.

    Every command prints the message alone, without a traceback, and exits with code 2.
    """
