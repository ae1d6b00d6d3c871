package load

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// HTTP is a request for a path on a connection that is kept, and its answer of
// 2xx with a body that is one line.
func HTTP(path string) Turn {
	return Turn{Send: []byte("GET " + path + " HTTP/1.1\r\nHost: lab\r\n\r\n"), Begin: "HTTP/1.1 2", End: "ok\n"}
}

// postgresReady ends an answer: ReadyForQuery, idle.
const postgresReady = "Z\x00\x00\x00\x05I"

// PostgresLogin begins a session of the user and database postgres, who is not
// asked for a password: the start-up message of protocol 3.0.
func PostgresLogin() Turn {
	b := binary.BigEndian.AppendUint32(make([]byte, 4), 3<<16)
	b = append(b, "user\x00postgres\x00database\x00postgres\x00\x00"...)
	binary.BigEndian.PutUint32(b, uint32(len(b)))
	return Turn{Send: b, Begin: "R", End: postgresReady}
}

// PostgresQuery is a statement that returns rows, outside of a transaction.
func PostgresQuery(text string) Turn {
	b := append([]byte("Q\x00\x00\x00\x00"), text...)
	b = append(b, 0)
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-1))
	return Turn{Send: b, Begin: "T", End: postgresReady}
}

// MySQLLogin waits for the greeting of a MySQL or MariaDB and begins a session of
// the user root, who has no password.
func MySQLLogin() []Turn {
	const (
		// CLIENT_LONG_PASSWORD, PROTOCOL_41, TRANSACTIONS, SECURE_CONNECTION, PLUGIN_AUTH
		capabilities = 1 | 1<<9 | 1<<13 | 1<<15 | 1<<19
		utf8         = 33
		plugin       = "mysql_native_password\x00"
	)
	b := binary.LittleEndian.AppendUint32(nil, capabilities)
	b = binary.LittleEndian.AppendUint32(b, 1<<24) // the largest packet
	b = append(b, utf8)
	b = append(b, make([]byte, 23)...)
	b = append(b, "root\x00\x00"+plugin...) // the answer to the challenge has no bytes
	return []Turn{
		{End: plugin[len(plugin)-8:]},
		{Send: mysqlPacket(1, b), Begin: "\x07\x00\x00\x02\x00", End: mysqlDone},
	}
}

// mysqlDone ends a packet OK: the status is autocommit, no warnings.
const mysqlDone = "\x02\x00\x00\x00"

// MySQLUpdate is a statement that changes a row, found and changed, without a
// warning, outside of a transaction.
func MySQLUpdate(text string) Turn {
	return Turn{Send: mysqlQuery(text), Begin: "\x30\x00\x00\x01\x00\x01", End: "ings: 0"}
}

// MySQLStatement is one that returns no rows and has nothing to say.
func MySQLStatement(text string) Turn {
	return Turn{Send: mysqlQuery(text), Begin: "\x07\x00\x00\x01\x00", End: mysqlDone}
}

// MySQLPing asks whether the server is there.
func MySQLPing() Turn {
	return Turn{Send: mysqlPacket(0, []byte{0x0e}), Begin: "\x07\x00\x00\x01\x00", End: mysqlDone}
}

func mysqlQuery(text string) []byte { return mysqlPacket(0, append([]byte{3}, text...)) }

func mysqlPacket(sequence byte, body []byte) []byte {
	head := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
	head[3] = sequence
	return append(head, body...)
}

// RedisCommand is a command whose reply is one line that begins so.
func RedisCommand(reply string, words ...string) Turn {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	return Turn{Send: []byte(b.String()), Begin: reply, End: "\r\n"}
}
