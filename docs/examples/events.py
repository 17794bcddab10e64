import base64, http.client, json, os, socket, sys


class Daemon(http.client.HTTPConnection):
    """A connection to the daemon's Unix socket."""

    def connect(self):
        home = os.environ.get("PYBOX_HOME") or os.path.expanduser("~/.pybox")
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(os.path.join(home, "pybox.sock"))


program = "for i in range(3): print('line', i, flush=True)"
daemon = Daemon("pybox")
daemon.request(
    "POST", "/v1/runs",
    body=json.dumps({"program": {"text": program}}),
    headers={"Accept": "application/x-ndjson", "Content-Type": "application/json"},
)
answer = daemon.getresponse()
if answer.status != 200:
    sys.exit("no run: " + json.load(answer)["detail"])
for line in answer:
    event = json.loads(line)
    if event["event"] == "output":
        stream = getattr(sys, event["stream"])
        data = event["text"].encode() if "text" in event else base64.b64decode(event["base64"])
        stream.buffer.write(data)
        stream.buffer.flush()
    elif event["event"] == "problem":
        sys.exit("no run: " + event["problem"]["detail"])
    elif event["event"] == "receipt":
        receipt = event["receipt"]
        print(receipt["run"]["id"], receipt["ending"]["how"], file=sys.stderr)
        break
else:
    sys.exit("the daemon is gone")
