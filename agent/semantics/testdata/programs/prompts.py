import code, getpass, pdb, sys

print(repr(getpass.getpass("secret: ")))
code.interact("a banner", lambda prompt: input("in " + prompt), {"x": 5}, "bye")
try:
    import readline

    print(readline.get_current_history_length(), readline.backend)
except ImportError as error:
    print(error)


def f():
    y = 7
    breakpoint()
    return y


f()
