def one(e):
    try:
        raise e
    except Exception as error:
        return error


class Own(Exception):
    def __str__(self):
        return "own\ntext"


raise ExceptionGroup("outer", [one(ValueError(1)), ExceptionGroup("inner", [one(Own()), TypeError("t")]), *(KeyError(i) for i in range(20))]) from one(OSError("cause"))
