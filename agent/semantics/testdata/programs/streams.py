import io, sys

for stream, first in (sys.stdin, sys.__stdin__), (sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__):
    print(repr(stream), stream is first, type(stream), sorted(vars(stream)))
    for name in "name mode encoding errors newlines closed write_through _CHUNK_SIZE".split():
        print("  text", name, repr(getattr(stream, name)))
    for name in "isatty fileno readable writable seekable".split():
        print("  text", name, getattr(stream, name)())
    print("buffering", stream.name, stream.line_buffering)
    buffer = stream.buffer
    raw = getattr(buffer, "raw", buffer)
    print("  buffer", type(buffer), repr(buffer), buffer.name, buffer.mode, sorted(vars(buffer)) if hasattr(buffer, "__dict__") else None)
    print("  raw", type(raw), repr(raw), raw.name, raw.mode, raw.closefd, raw.seekable(), raw.isatty(), raw.fileno(), raw._blksize, sorted(vars(raw)))
    for call in stream.tell, buffer.tell, raw.tell:
        try:
            print("  tell", call())
        except OSError as error:
            print("  tell", type(error), error)
print(io.DEFAULT_BUFFER_SIZE, io.text_encoding(None), sys.stdin.read())
