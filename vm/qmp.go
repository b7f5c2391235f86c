package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Event is a report of QEMU: SHUTDOWN, RESET, WATCHDOG, POWERDOWN, STOP, … (QEMU's QMP reference).
type Event struct {
	Name string    `json:"event"`
	At   time.Time `json:"at"`
	// Data depends on the event; SHUTDOWN and RESET have "guest" and "reason".
	Data map[string]any `json:"data,omitempty"`
}

// qmp is a client of QEMU's machine protocol (QMP).
type qmp struct {
	conn io.ReadWriteCloser

	mu      sync.Mutex
	next    int
	waiting map[int]chan qmpMessage
	events  []Event
	ended   chan struct{}
}

type qmpMessage struct {
	Greeting json.RawMessage `json:"QMP"`
	ID       int             `json:"id"`
	Return   json.RawMessage `json:"return"`
	Error    *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
	Event string         `json:"event"`
	Data  map[string]any `json:"data"`
	Time  struct {
		Seconds      int64 `json:"seconds"`
		Microseconds int64 `json:"microseconds"`
	} `json:"timestamp"`
}

var errMonitorEnded = errors.New("QEMU closed its monitor")

// newQMP returns a client that reads from conn until conn ends. Commands work after negotiate.
func newQMP(conn io.ReadWriteCloser) *qmp {
	q := &qmp{conn: conn, waiting: map[int]chan qmpMessage{}, ended: make(chan struct{})}
	go q.read()
	return q
}

func (q *qmp) read() {
	defer close(q.ended)
	defer q.conn.Close()
	decoder := json.NewDecoder(q.conn)
	for {
		var m qmpMessage
		if err := decoder.Decode(&m); err != nil {
			return
		}
		q.mu.Lock()
		switch {
		case m.Event != "":
			q.events = append(q.events, Event{Name: m.Event, Data: m.Data,
				At: time.Unix(m.Time.Seconds, m.Time.Microseconds*1000)})
		case m.Greeting == nil:
			if answer := q.waiting[m.ID]; answer != nil {
				answer <- m
				delete(q.waiting, m.ID)
			}
		}
		q.mu.Unlock()
	}
}

// negotiate ends the initial mode of QEMU, in which QEMU accepts no other command.
func (q *qmp) negotiate(ctx context.Context) error { return q.do(ctx, "qmp_capabilities", nil) }

// do runs a command and waits for its end. It fails if QEMU reports an error.
func (q *qmp) do(ctx context.Context, command string, arguments map[string]any) error {
	_, err := q.ask(ctx, command, arguments)
	return err
}

// ask runs a command and returns its result. It fails if QEMU reports an error.
func (q *qmp) ask(ctx context.Context, command string, arguments map[string]any) (json.RawMessage, error) {
	answer := make(chan qmpMessage, 1)
	q.mu.Lock()
	q.next++
	id := q.next
	q.waiting[id] = answer
	request := map[string]any{"execute": command, "id": id}
	if arguments != nil {
		request["arguments"] = arguments
	}
	err := json.NewEncoder(q.conn).Encode(request)
	q.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("qmp: cannot send %s: %w (%w)", command, errMonitorEnded, err)
	}
	return q.await(ctx, command, answer)
}

// await waits for the answer to a command. It fails if QEMU reports an error, or if QEMU or ctx
// ends before the answer.
func (q *qmp) await(ctx context.Context, command string, answer <-chan qmpMessage) (json.RawMessage, error) {
	var err error
	select {
	case m := <-answer:
		return m.result(command)
	case <-q.ended:
		err = errMonitorEnded
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	// If QEMU answers and then ends, both channels are ready, and select may choose q.ended. The
	// answer is still valid.
	select {
	case m := <-answer:
		return m.result(command)
	default:
		return nil, fmt.Errorf("qmp: cannot run %s: %w", command, err)
	}
}

// result returns the result of the command that m answers.
func (m qmpMessage) result(command string) (json.RawMessage, error) {
	if m.Error != nil {
		return nil, fmt.Errorf("qmp: %s: %s: %s", command, m.Error.Class, m.Error.Desc)
	}
	return m.Return, nil
}

func (q *qmp) log() []Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]Event(nil), q.events...)
}
