"""A shop as many are: a pool of threads, a connection to the database for each.

What a request asks of the database takes as long as the table pace says. The
health check asks it something trivial, on the same threads.
"""
import os
import threading

import psycopg2

local = threading.local()


def query(text):
    connection = getattr(local, "connection", None)
    if connection is None or connection.closed:
        connection = psycopg2.connect(os.environ["DATABASE"])
        connection.autocommit = True
        local.connection = connection
    with connection.cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchone()


def application(environ, start_response):
    if environ["PATH_INFO"] == "/health":
        query("SELECT 1")
    else:
        query("SELECT pg_sleep(seconds) FROM pace")
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "3")])
    return [b"ok\n"]
