package kubelet

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/orchestrator/component"
)

// The kubelet ends its pods in order (hooks, each pod's grace period, critical pods last) only if
// systemd-logind announces a shutdown of the machine. The system has no systemd, so this process
// implements logind for its kubelet. It answers the three calls of upstream's
// pkg/kubelet/nodeshutdown/systemd, and sends the signal for which that package waits (systemd,
// Inhibitor Locks; D-Bus Specification, Authentication Protocol and Message Protocol).
const (
	logindInterface = "org.freedesktop.login1.Manager"
	logindPath      = dbus.ObjectPath("/org/freedesktop/login1")
)

// logind is a D-Bus server for a kubelet.
type logind struct {
	listener net.Listener
	delay    time.Duration // for which a lock can delay the shutdown
	mu       sync.Mutex
	clients  map[net.Conn]*sync.Mutex // a mutex is held while a message is written
	// read ends of pipes: they reach EOF when the kubelet releases its lock
	locks []*os.File
}

// newLogind listens at path, and makes this socket the system bus of the process. Only this process
// may have access to the directory of the socket. delay is the time for which a lock can delay the
// shutdown.
func newLogind(path string, delay time.Duration) (*logind, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("logind: cannot remove the former socket: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("logind: cannot listen: %w", err)
	}
	if err := os.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+path); err != nil {
		return nil, errors.Join(fmt.Errorf("logind: cannot name the bus: %w", err), listener.Close())
	}
	l := &logind{listener: listener, delay: delay, clients: map[net.Conn]*sync.Mutex{}}
	go l.accept()
	return l, nil
}

func (l *logind) close() error { return l.listener.Close() }

func (l *logind) accept() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			defer conn.Close()
			_ = l.serve(conn) // a client that disconnects or sends invalid messages is dropped
			l.mu.Lock()
			delete(l.clients, conn)
			l.mu.Unlock()
		}()
	}
}

func (l *logind) serve(conn net.Conn) error {
	in := bufio.NewReader(conn)
	if err := welcome(in, conn); err != nil {
		return err
	}
	l.mu.Lock()
	l.clients[conn] = &sync.Mutex{}
	l.mu.Unlock()
	for {
		call, err := dbus.DecodeMessage(in)
		if err != nil {
			return err
		}
		if call.Type != dbus.TypeMethodCall {
			continue
		}
		if err := l.send(conn, l.reply(call)); err != nil {
			return err
		}
	}
}

// welcome is the server's part of the authentication. Only this process can reach the socket in its
// private directory, so welcome accepts every client.
func welcome(in *bufio.Reader, out io.Writer) error {
	if _, err := in.ReadByte(); err != nil { // the NUL byte that carries credentials
		return err
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		answer := "ERROR"
		switch words := strings.Fields(line); {
		case len(words) == 1 && words[0] == "BEGIN":
			return nil
		case len(words) == 1 && words[0] == "AUTH":
			answer = "REJECTED EXTERNAL"
		case len(words) > 1 && words[0] == "AUTH" && words[1] == "EXTERNAL":
			answer = "OK 00000000000000000000000000000001" // the server's GUID, a constant
		}
		if _, err := io.WriteString(out, answer+"\r\n"); err != nil {
			return err
		}
	}
}

// reply answers a call.
func (l *logind) reply(call *dbus.Message) *dbus.Message {
	member, _ := call.Headers[dbus.FieldMember].Value().(string)
	var body []any
	switch {
	case member == "Hello":
		body = []any{":1.1"}
	case member == "AddMatch":
	case member == "Get" && len(call.Body) == 2 && call.Body[1] == "InhibitDelayMaxUSec":
		body = []any{dbus.MakeVariant(uint64(l.delay / time.Microsecond))}
	case member == "Inhibit":
		lock, err := l.inhibit()
		if err == nil {
			body = []any{lock}
			break
		}
		return message(dbus.TypeError, map[dbus.HeaderField]any{dbus.FieldReplySerial: call.Serial(), dbus.FieldErrorName: "org.freedesktop.DBus.Error.Failed"}, err.Error())
	default:
		return message(dbus.TypeError, map[dbus.HeaderField]any{dbus.FieldReplySerial: call.Serial(), dbus.FieldErrorName: "org.freedesktop.DBus.Error.UnknownMethod"}, member)
	}
	return message(dbus.TypeMethodReply, map[dbus.HeaderField]any{dbus.FieldReplySerial: call.Serial()}, body...)
}

// inhibit makes a lock and returns its file descriptor. The client is in this process, so the reply
// contains only the number of the descriptor.
func (l *logind) inhibit() (uint32, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return 0, fmt.Errorf("cannot make a lock: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locks = append(l.locks, os.NewFile(uintptr(ends[0]), "inhibitor"))
	return uint32(ends[1]), nil
}

func message(kind dbus.Type, headers map[dbus.HeaderField]any, body ...any) *dbus.Message {
	m := &dbus.Message{Type: kind, Flags: dbus.FlagNoReplyExpected, Headers: map[dbus.HeaderField]dbus.Variant{}, Body: body}
	for field, value := range headers {
		m.Headers[field] = dbus.MakeVariant(value)
	}
	if len(body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body...))
	}
	return m
}

func (l *logind) send(conn net.Conn, m *dbus.Message) error {
	l.mu.Lock()
	writing := l.clients[conn]
	l.mu.Unlock()
	if writing == nil {
		return net.ErrClosed
	}
	writing.Lock()
	defer writing.Unlock()
	return m.EncodeTo(conn, binary.LittleEndian)
}

// shutdown announces the shutdown of the machine, and waits until the kubelet has released every
// lock or ctx is done. The kubelet releases its lock when its pods have ended.
func (l *logind) shutdown(ctx context.Context) error {
	signal := message(dbus.TypeSignal, map[dbus.HeaderField]any{
		dbus.FieldPath: logindPath, dbus.FieldInterface: logindInterface, dbus.FieldMember: "PrepareForShutdown",
	}, true)
	l.mu.Lock()
	locks := l.locks
	var clients []net.Conn
	for conn := range l.clients {
		clients = append(clients, conn)
	}
	l.mu.Unlock()
	for _, conn := range clients {
		_ = l.send(conn, signal) // a closed connection holds no lock
	}
	released := make(chan struct{})
	go func() {
		defer close(released)
		for _, lock := range locks {
			_, _ = lock.Read(make([]byte, 1)) // the pipe has no writes: Read returns at EOF
		}
	}()
	return component.Wait(ctx, released)
}
