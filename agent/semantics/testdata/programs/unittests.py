import unittest


class T(unittest.TestCase):
    def test_passes(self):
        self.assertEqual(__name__, "__main__")

    def test_fails(self):
        with self.subTest(i=1):
            self.assertEqual([1, 2, 3], [1, 2, 4], "of lists")

    def test_errs(self):
        raise ValueError

    @unittest.skip("for a reason")
    def test_skipped(self):
        pass

    def test_prints(self):
        print("printed")


unittest.runner.time.perf_counter = lambda: 0.0
unittest.main(verbosity=2)
