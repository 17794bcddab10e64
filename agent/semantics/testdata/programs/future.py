from __future__ import annotations

import contextvars, dataclasses, enum, typing


@dataclasses.dataclass(slots=True, frozen=True)
class Node[T]:
    value: T
    next: Node[T] | None = None


class Flag(enum.Flag):
    A = enum.auto()
    B = enum.auto()


def f(a: Undefined, b: typing.Optional[int] = None) -> Node: ...


type Alias = list[Alias]
print(f.__annotations__, Node.__annotations__, typing.get_type_hints(Node), repr(Alias.__value__), Flag.A | Flag.B, list(Flag))
print(Node(1, Node(2)), Node.__module__, Node.__qualname__, repr(Node), repr(f)[:13])
print([k for k in globals() if not k.startswith("__")], __annotations__)
match Node(1):
    case Node(value=v, next=None):
        print("matched", v)
c = contextvars.ContextVar("c")
contextvars.copy_context().run(c.set, 1)
print(c.get("unset"), len(contextvars.copy_context()))
try:
    typing.get_type_hints(f)
except NameError as error:
    print(error)
Node(1).value = 2
