"""
>>> double(2)
4
>>> double(3)
7
>>> double('x')
'xx'
>>> 1 / 0
Traceback (most recent call last):
  ...
ZeroDivisionError: division by zero
"""


def double(x):
    """
    >>> double.__module__
    '__main__'
    >>> double(None)
    """
    return 2 * x


import doctest

print(doctest.testmod())
print(doctest.testmod(verbose=True, name="again"))
