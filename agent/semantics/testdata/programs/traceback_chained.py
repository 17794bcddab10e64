def a():
    {}["missing"]


def b():
    try:
        a()
    except KeyError as error:
        error.add_note("a note\nof two lines")
        raise ValueError("from ä\tb\n") from error


try:
    b()
except ValueError:
    try:
        try:
            raise OSError(2, "No such thing", "name")
        except OSError:
            raise LookupError from None
    except LookupError:
        print("handled")
    finally:
        print("finally")
    undefined
