// A client of pybox mcp, made with the protocol's own SDK for TypeScript. It does what
// an AI client does and prints what it saw as lines of JSON; the tests judge.
//
//   node client.mjs FOLDER stdio COMMAND ARGUMENTS...
//   node client.mjs FOLDER http URL TOKEN
//
// FOLDER has the node_modules of scripts/mcp-clients. A line on standard input goes on
// where the client waits.
import { createRequire } from 'node:module';
import { once } from 'node:events';
import readline from 'node:readline';

const [folder, kind, ...rest] = process.argv.slice(2);
const require = createRequire(folder + '/');
const { Client } = require('@modelcontextprotocol/sdk/client/index.js');

function transport() {
  if (kind === 'http') {
    const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js');
    return new StreamableHTTPClientTransport(new URL(rest[0]), { requestInit: { headers: { Authorization: `Bearer ${rest[1]}` } } });
  }
  const { StdioClientTransport } = require('@modelcontextprotocol/sdk/client/stdio.js');
  return new StdioClientTransport({ command: rest[0], args: rest.slice(1), env: process.env, stderr: 'inherit' });
}

const say = (what, value) => process.stdout.write(JSON.stringify({ what, value }) + '\n');
const input = readline.createInterface({ input: process.stdin });
const client = new Client({ name: 'pybox-tests', version: '1.0.0' });
await client.connect(transport());
say('server', client.getServerVersion());

// The list first: with it the SDK checks results against the schema of output.
const { tools } = await client.listTools();
say('tools', tools);

const run = (args, options) => client.callTool({ name: 'run_python', arguments: args }, undefined, options);
const png = `
import struct, sys, zlib
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
w, h = 2000, 8
rows = b"".join(b"\\0" + bytes(x & 255 for x in range(3 * w)) for _ in range(h))
open("plot.png", "wb").write(b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
open("out.csv", "w").write(open("in.csv").read().upper())
print("args", sys.argv[1:], "stdin", sys.stdin.read(), "\\x1b[31m")
print("{\\"jsonrpc\\":\\"2.0\\",\\"id\\":1,\\"result\\":{}}", file=sys.stderr)
`;
const progress = [];
say('first', await run(
  { code: png, args: ['a', 'b c'], stdin: 'standard', timeout: 10, files: [{ name: 'in.csv', text: 'a,b\n' }], return_files: ['*.png', 'out.csv'] },
  { onprogress: (p) => progress.push(p), timeout: 120000, resetTimeoutOnProgress: true },
));
say('progress', progress);
say('failing', await run({ code: '1/0' }));
say('refused', await run({ code: '1', timeout: 100000 }));

const many = await Promise.all(Array.from({ length: 20 }, (_, n) => run({ code: `print(${n} * ${n})`, timeout: 30 }, { timeout: 300000 })));
say('many', many.map((r) => r.structuredContent?.stdout.text));

// A call that is cancelled when the other side says so; tools/list meanwhile.
const giveUp = new AbortController();
const sleeping = run({ code: 'import time; print("zzz", flush=True); time.sleep(25)', timeout: 30 }, {
  signal: giveUp.signal, timeout: 60000,
  onprogress: (p) => { if (/running/.test(p.message)) say('running', p); },
}).then((r) => say('sleeping', r), (e) => say('cancelled', String(e)));
await once(input, 'line');
const began = performance.now();
await client.listTools();
say('listed', performance.now() - began);
giveUp.abort('enough');
await sleeping;
say('after', await run({ code: 'print("still here")' }));
await client.close();
input.close();
