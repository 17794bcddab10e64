import sys


class C:
    def method(self, x):
        return [self.nested(y) for y in range(x)]

    def nested(self, y):
        def inner():
            return 1 / y

        return (lambda: inner())()


def main():
    return (
        C()
        .method(
            3,
        )
    )


print("before")
main()
