import { request } from "node:http";
import { homedir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const home = process.env.PYBOX_HOME || join(homedir(), ".pybox");
const program = "for i in range(3): print('line', i, flush=True)";

const answer = await new Promise((resolve, reject) => {
  const req = request({
    socketPath: join(home, "pybox.sock"),
    method: "POST",
    path: "/v1/runs",
    headers: { Accept: "application/x-ndjson", "Content-Type": "application/json" },
  });
  req.on("response", resolve);
  req.on("error", reject);
  req.end(JSON.stringify({ program: { text: program } }));
});

let receipt;
for await (const line of createInterface({ input: answer })) {
  const event = JSON.parse(line);
  if (answer.statusCode !== 200) throw new Error("no run: " + event.detail);
  if (event.event === "problem") throw new Error("no run: " + event.problem.detail);
  if (event.event === "output") {
    const data = event.text ?? Buffer.from(event.base64, "base64");
    process[event.stream].write(data);
  }
  if (event.event === "receipt") receipt = event.receipt;
}
if (!receipt) throw new Error("the daemon is gone");
console.error(receipt.run.id, receipt.ending.how);
