"""A stand-in for an MCP server: streamable HTTP with sessions, pages of tools, answers as JSON or events."""

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = [
    {"name": "shout", "description": "Say it loudly", "inputSchema": TEXT},
    {"name": "text.fail", "description": "Fails", "inputSchema": TEXT},
    {"name": "calculate", "description": "Named as a tool of the page", "inputSchema": TEXT},
]


class _Handler(BaseHTTPRequestHandler):
    def do_OPTIONS(self):
        self.answer(204)

    def do_POST(self):
        site = self.server.site
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        site.heard.append(message)
        if site.key and self.headers.get("authorization") != f"Bearer {site.key}":
            return self.answer(401)
        if message.get("method") == "initialize":
            site.sessions.add(session := uuid.uuid4().hex)
            told = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "Loud"}}
            return self.tell(message["id"], told, {"mcp-session-id": session})
        if self.headers.get("mcp-session-id") not in site.sessions:
            return self.answer(404)
        if "method" not in message or "id" not in message:  # an answer, or a notification
            return self.answer(202)
        if message["method"] == "tools/list":
            at = int(message["params"].get("cursor", 0))
            more = {"nextCursor": str(at + 1)} if at + 1 < len(TOOLS) else {}
            return self.tell(message["id"], {"tools": [TOOLS[at]], **more})
        return self.call(message)

    def call(self, message):
        """Answer as events: something that is no answer, a question, and then the result."""
        name, text = message["params"]["name"], message["params"]["arguments"]["text"]
        result = {"content": [{"type": "text", "text": text.upper()}], "isError": name == "text.fail"}
        events = (
            {"method": "notifications/message", "params": {"level": "info", "data": "at work"}},
            {"id": "question", "method": "ping"},
            {"id": message["id"], "result": result},
        )
        body = "".join(f"event: message\ndata: {json.dumps({'jsonrpc': '2.0'} | one)}\n\n" for one in events)
        self.answer(200, body.encode(), {"content-type": "text/event-stream"})

    def tell(self, id_, result, headers=()):
        body = json.dumps({"jsonrpc": "2.0", "id": id_, "result": result}).encode()
        self.answer(200, body, {"content-type": "application/json", **dict(headers)})

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        allow = {"allow-origin": "*", "allow-headers": "*, authorization", "expose-headers": "mcp-session-id"}
        for name, value in {f"access-control-{k}": v for k, v in allow.items()}.items():
            self.send_header(name, value)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class McpServer:
    """On loopback in a thread of its own, for as long as the `with` lasts; `heard` has what it was sent."""

    def __init__(self, key=""):
        self.key, self.heard, self.sessions = key, [], set()

    def __enter__(self):
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.site = self
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/mcp"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._http.server_close()

    def methods(self):
        return [message.get("method", "answer") for message in self.heard]
