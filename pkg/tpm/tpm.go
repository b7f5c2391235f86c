// Package tpm sends commands to a TPM 2.0: it is the transport between go-tpm, which has the
// commands and structures, and the device file of the kernel's resource manager. It interprets no
// answer beyond its length.
package tpm

import (
	"encoding/binary"
	"fmt"
	"io"
)

// maxResponse is the size of Linux's buffer for an answer of the TPM, in bytes (TPM_BUFSIZE).
const maxResponse = 4096

// Conn is a connection to a TPM: its open device file, or the socket of an emulator.
type Conn struct{ io.ReadWriter }

// Send implements transport.TPM.
func (c Conn) Send(command []byte) ([]byte, error) {
	const header = 10 // tag, size, result
	if _, err := c.Write(command); err != nil {
		return nil, err
	}
	out := make([]byte, maxResponse)
	n, err := io.ReadAtLeast(c, out, header)
	if err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(out[2:]))
	if size < header || size > maxResponse {
		return nil, fmt.Errorf("the answer has a size of %d bytes", size)
	}
	if n < size {
		if _, err := io.ReadFull(c, out[n:size]); err != nil {
			return nil, err
		}
	}
	return out[:size], nil
}
