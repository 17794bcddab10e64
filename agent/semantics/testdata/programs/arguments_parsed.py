import argparse

p = argparse.ArgumentParser(description="It parses.")
p.add_argument("--number", type=int, help="a number")
p.add_argument("word", choices=["a", "b"])
print(p.prog, p.parse_args(["a"]))
p.print_help()
p.parse_args()
