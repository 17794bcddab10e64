import copy, dataclasses, enum, pickle, pickletools, sys


@dataclasses.dataclass(order=True)
class Data:
    x: int
    y: list = dataclasses.field(default_factory=list)


class Color(enum.Enum):
    RED = 1


class Outer:
    class Inner:
        def __reduce__(self):
            return Outer.Inner, ()


for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
    text = pickle.dumps([Data(1, [2]), Data, Color.RED, Outer.Inner, Outer.Inner(), print], protocol)
    back = pickle.loads(text)
    print(text, back[:4], back[1] is Data, type(back[4]) is Outer.Inner)
pickletools.dis(text)
print(copy.deepcopy(Data(3)), sys.modules["__main__"].Data is Data)


def local():
    class Hidden:
        pass

    return Hidden


pickle.dumps(local())
