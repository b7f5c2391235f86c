package notify

import (
	"bytes"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSendAndRead(t *testing.T) {
	var pipe bytes.Buffer
	w := NewWriter(&pipe)
	for _, m := range []Message{{"etcd", false, "loading\nthe snapshot"}, {"etcd", true, ""}, {"", true, strings.Repeat("\x01", 9000)}} {
		if err := w.Send(m.Component, m.Ready, m.Detail); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(pipe.String()) {
		if len(line) > MaxLine {
			t.Errorf("a line of %d bytes; a pipe may split the line", len(line))
		}
	}
	got := readAll(t, pipe.String())
	want := []Message{{"etcd", false, "loading the snapshot"}, {"etcd", true, ""}, {"", true, strings.Repeat("\x01", 500)}}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("read %+v\nwant %+v", got, want)
	}
}

func TestBadLinesAreSkipped(t *testing.T) {
	input := "hello\n\n" + strings.Repeat("x", 3*MaxLine) + "\n" + `{"component":"a","ready":true}` + "\n" + `{"component":"b","ready":true}`
	var bad int
	var got []Message
	if err := Read(strings.NewReader(input), func(m Message) { got = append(got, m) }, func(string, error) { bad++ }); err != nil {
		t.Fatal(err)
	}
	if bad != 2 || len(got) != 2 || got[1].Component != "b" {
		t.Fatalf("%d bad lines and %v; want 2, and components a and b", bad, got)
	}
}

func TestNilWriterSendsNothing(t *testing.T) {
	var w *Writer
	if err := w.Send("x", true, ""); err != nil {
		t.Fatal(err)
	}
}

func TestFromEnv(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	// FromEnv takes over the descriptor and closes it at the end, so the test passes a copy.
	fd, err := unix.Dup(int(w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(Env, strconv.Itoa(fd))
	n, err := FromEnv()
	if err != nil {
		t.Fatal(err)
	}
	if _, there := os.LookupEnv(Env); there {
		t.Error(Env + " is still in the environment")
	}
	if err := n.Send("a", true, "b"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 100)
	size, err := r.Read(buffer)
	if err != nil || string(buffer[:size]) != `{"component":"a","ready":true,"detail":"b"}`+"\n" {
		t.Fatalf("read %q, %v", buffer[:size], err)
	}
}

func TestFromEnvRefusesNonsense(t *testing.T) {
	for _, value := range []string{"", "x", "1", "999999"} {
		t.Setenv(Env, value)
		if _, err := FromEnv(); err == nil {
			t.Errorf("FromEnv accepts %s=%q", Env, value)
		}
	}
}

func readAll(t *testing.T, input string) []Message {
	t.Helper()
	var got []Message
	err := Read(strings.NewReader(input), func(m Message) { got = append(got, m) }, func(line string, err error) { t.Errorf("%q: %v", line, err) })
	if err != nil {
		t.Fatal(err)
	}
	return got
}
