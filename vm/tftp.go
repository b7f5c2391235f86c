package vm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// The opcodes of TFTP packets (RFC 1350, RFC 2347).
const (
	tftpRead  = 1
	tftpData  = 3
	tftpAck   = 4
	tftpError = 5
	tftpOack  = 6
)

const (
	tftpPatience = time.Second // wait for an acknowledgment, before the window is sent again
	tftpTries    = 10          // transmissions of a window
)

// tftpServer sends files by TFTP with the features that firmware uses: octet mode, and the options
// blksize, tsize and windowsize (RFC 2348, 2349, 7440). The library pin/tftp is not used: it opens
// sockets of the host, and with other connections it supports only blocks of 512 bytes.
type tftpServer struct {
	open   func(name string) (*os.File, error)
	listen func() (net.PacketConn, error) // a separate socket for each transfer
}

// serve answers read requests until requests is closed.
func (s tftpServer) serve(requests net.PacketConn) {
	packet := make([]byte, networkMTU)
	for {
		length, from, err := requests.ReadFrom(packet)
		if err != nil {
			return
		}
		words := strings.Split(string(packet[min(2, length):length]), "\x00")
		if length < 2 || packet[1] != tftpRead || len(words) < 3 {
			continue // other requests are not supported
		}
		go s.answer(from, words[0], words[2:len(words)-1])
	}
}

// answer sends a file, or an error if the file cannot be opened. After another failure, the client
// gets no answer and repeats its request.
func (s tftpServer) answer(to net.Addr, name string, options []string) {
	conn, err := s.listen()
	if err != nil {
		return
	}
	defer conn.Close()
	f, err := s.open(name)
	if err != nil {
		conn.WriteTo(append([]byte{0, tftpError, 0, 1}, err.Error()+"\x00"...), to)
		return
	}
	defer f.Close()
	t := tftpTransfer{conn: conn, to: to, file: f, block: 512, window: 1}
	if err := t.negotiate(options); err != nil {
		return
	}
	t.send()
}

// tftpTransfer is the transfer of a file.
type tftpTransfer struct {
	conn   net.PacketConn
	to     net.Addr
	file   *os.File
	size   int64
	block  int // bytes
	window int // blocks that are sent before an acknowledgment is required
}

// negotiate applies the options that it knows. If the request has known options, it acknowledges
// them and waits for the client's acknowledgment.
func (t *tftpTransfer) negotiate(options []string) error {
	info, err := t.file.Stat()
	if err != nil {
		return err
	}
	t.size = info.Size()
	answer := []byte{0, tftpOack}
	for i := 0; i+1 < len(options); i += 2 {
		name := strings.ToLower(options[i])
		value, err := strconv.Atoi(options[i+1])
		if err != nil {
			continue
		}
		switch name {
		case "blksize":
			t.block = min(max(value, 8), networkMTU-32) // 32: headers of IPv4, UDP and TFTP
			value = t.block
		case "windowsize":
			t.window = min(max(value, 1), 64)
			value = t.window
		case "tsize":
			value = int(t.size)
		default:
			continue
		}
		answer = fmt.Appendf(answer, "%s\x00%d\x00", name, value)
	}
	if len(answer) == 2 {
		return nil
	}
	for range tftpTries {
		if _, err := t.conn.WriteTo(answer, t.to); err != nil {
			return err
		}
		if number, err := t.acknowledged(); err != nil {
			return err
		} else if number == 0 {
			return nil
		}
	}
	return os.ErrDeadlineExceeded
}

// send sends all blocks in windows, and repeats a window that the client does not acknowledge. The
// last block is shorter than the other blocks, and may be empty.
func (t *tftpTransfer) send() {
	last := t.size/int64(t.block) + 1
	packet := make([]byte, 4+t.block)
	for done, tries := int64(0), 0; done < last && tries < tftpTries; tries++ {
		for number := done + 1; number <= min(done+int64(t.window), last); number++ {
			length, err := t.file.ReadAt(packet[4:], (number-1)*int64(t.block))
			if err != nil && !errors.Is(err, io.EOF) {
				return
			}
			binary.BigEndian.PutUint16(packet, tftpData)
			// The number wraps from 65535 to 0.
			binary.BigEndian.PutUint16(packet[2:], uint16(number))
			if _, err := t.conn.WriteTo(packet[:4+length], t.to); err != nil {
				return
			}
		}
		number, err := t.acknowledged()
		if err != nil {
			return
		}
		if step := int64(uint16(number) - uint16(done)); number >= 0 && step > 0 && step <= int64(t.window) {
			done, tries = done+step, 0
		}
	}
}

// acknowledged waits for an acknowledgment and returns its number; -1 after a timeout. It fails if
// the client sends an error.
func (t *tftpTransfer) acknowledged() (int, error) {
	if err := t.conn.SetReadDeadline(time.Now().Add(tftpPatience)); err != nil {
		return 0, err
	}
	packet := make([]byte, networkMTU)
	for {
		length, from, err := t.conn.ReadFrom(packet)
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
			return -1, nil
		}
		switch {
		case err != nil:
			return 0, err
		case from.String() != t.to.String() || length < 4:
		case packet[1] == tftpError:
			return 0, fmt.Errorf("tftp: refused: %s", bytes.TrimRight(packet[4:length], "\x00"))
		case packet[1] == tftpAck:
			return int(binary.BigEndian.Uint16(packet[2:])), nil
		}
	}
}
