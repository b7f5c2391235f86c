// Package jsonline sends a value over a connection as a line of JSON, and receives a value of
// bounded length. The protocols that use it (packages pairing and joinrequest) define the messages
// and the deadlines.
package jsonline

import (
	"encoding/json"
	"fmt"
	"io"
)

// Send writes a message. Its errors begin with the name of the protocol.
func Send(conn io.Writer, protocol string, message any) error {
	text, err := json.Marshal(message)
	if err == nil {
		_, err = conn.Write(append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("%s: cannot send: %w", protocol, err)
	}
	return nil
}

// Receive reads a message of at most `most` bytes. Its errors begin with the name of the protocol.
func Receive(conn io.Reader, protocol string, most int64, message any) error {
	if err := json.NewDecoder(io.LimitReader(conn, most)).Decode(message); err != nil {
		return fmt.Errorf("%s: cannot parse answer: %w", protocol, err)
	}
	return nil
}
