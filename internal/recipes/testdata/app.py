"""A service that takes 40 ms for whatever it is asked but for its health."""
import time


def application(environ, start_response):
    if environ["PATH_INFO"] != "/health":
        time.sleep(0.04)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "3")])
    return [b"ok\n"]
