print(*open("/proc/self/environ").read().split("\0"), sep="\n")
