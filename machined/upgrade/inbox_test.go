package upgrade

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/orlop-os/orlop/pkg/bundle"
)

// emptyInbox returns an Inbox on a file system with space for bundles of room bytes.
func emptyInbox(t *testing.T, room int64) Inbox {
	return Inbox{Dir: t.TempDir() + "/inbox", StallTimeout: time.Minute, Free: func(string) (int64, error) { return room + reserve, nil }}
}

// some returns random content of size bytes, and its digest.
func some(t *testing.T, size int) (content []byte, digest string) {
	t.Helper()
	content = make([]byte, size)
	rand.Read(content)
	sum := sha256.Sum256(content)
	return content, hex.EncodeToString(sum[:])
}

// welcome is an admit function that accepts every bundle.
func welcome(io.Reader) error { return nil }

func quiet(int64) {}

// breaking returns a source that delivers content and then fails with err.
func breaking(content []byte, err error) io.Reader {
	return io.MultiReader(bytes.NewReader(content), failing{err})
}

type failing struct{ err error }

func (e failing) Read([]byte) (int, error) { return 0, e.err }

// TestReceiveResumes interrupts transfers, each after another number of bytes. Another Inbox on the
// same directory continues after these bytes and completes the bundle. It overwrites bytes beyond
// the recorded size, which the file can have after a power cut.
func TestReceiveResumes(t *testing.T) {
	lost := errors.New("the line is dead")
	const size = flushBytes + 3*pieceSize + 7
	content, digest := some(t, size)
	for _, cut := range []int{0, 1, pieceSize - 1, pieceSize, pieceSize + 1, bundle.Head, flushBytes, flushBytes + 1, size - 1} {
		in := emptyInbox(t, size)
		if b, err := in.Offer(digest, size); err != nil || b.Have != 0 {
			t.Fatalf("cut at %d: %+v, %v", cut, b, err)
		}
		err := in.Receive(t.Context(), breaking(content[:cut], lost), welcome, quiet)
		if !errors.As(err, new(Unfinished)) || !errors.Is(err, lost) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		again := Inbox{Dir: in.Dir, StallTimeout: in.StallTimeout, Free: in.Free}
		b, err := again.Offer(digest, size)
		if err != nil || b.Have != int64(cut) {
			t.Fatalf("cut at %d: %d bytes are recorded, %v", cut, b.Have, err)
		}
		// After a power cut, the file can have arbitrary bytes beyond the recorded size.
		f, err := os.OpenFile(again.file(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if err := again.Receive(t.Context(), bytes.NewReader(content[cut:]), welcome, quiet); err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		got, err := os.ReadFile(again.file())
		if err != nil || !bytes.Equal(got, content) {
			t.Fatalf("cut at %d: the bundle has other bytes than were sent, %v", cut, err)
		}
		if b, err := again.Offer(digest, size); err != nil || b.Have != size {
			t.Fatalf("cut at %d: the bundle is complete, but %d bytes are recorded, %v", cut, b.Have, err)
		}
		if err := again.Receive(t.Context(), breaking(nil, lost), welcome, quiet); err != nil {
			t.Fatalf("cut at %d: Receive reads from the source although the bundle is complete: %v", cut, err)
		}
	}
}

// TestReceiveFlushes checks that the record is updated during the transfer, and not only at its
// end.
func TestReceiveFlushes(t *testing.T) {
	const size = flushBytes + 2*pieceSize
	content, digest := some(t, size)
	in := emptyInbox(t, size)
	if _, err := in.Offer(digest, size); err != nil {
		t.Fatal(err)
	}
	last := make(chan Bundle, 1)
	// The function reads the record after all pieces except the last.
	from := io.MultiReader(bytes.NewReader(content[:size-pieceSize]), asked(func() {
		b, _ := in.Bundle()
		last <- b
	}), bytes.NewReader(content[size-pieceSize:]))
	if err := in.Receive(t.Context(), from, welcome, quiet); err != nil {
		t.Fatal(err)
	}
	if b := <-last; b.Have < flushBytes || b.Have == size {
		t.Errorf("before the last piece, %d bytes were recorded", b.Have)
	}
}

// asked is an empty source that calls a function when it is read.
type asked func()

func (a asked) Read([]byte) (int, error) { a(); return 0, io.EOF }

// TestAdmit checks that the function admit gets the head of a bundle, and that Receive reads little
// more than the head of a rejected bundle. Receive calls admit again for a resumed transfer. For a
// bundle smaller than the head, Receive calls admit when the bundle is complete.
func TestAdmit(t *testing.T) {
	const size = 4 << 20
	content, digest := some(t, size)
	in := emptyInbox(t, size)
	if _, err := in.Offer(digest, size); err != nil {
		t.Fatal(err)
	}
	no := Refusal{errors.New("not here")}
	from := bytes.NewReader(content)
	for range 2 { // first from the beginning, then with the head already stored
		seen := []byte(nil)
		err := in.Receive(t.Context(), from, func(head io.Reader) (err error) {
			seen, err = io.ReadAll(head)
			return errors.Join(err, no)
		}, quiet)
		if !errors.As(err, new(Refusal)) || len(seen) < bundle.Head || !bytes.HasPrefix(content, seen) {
			t.Errorf("a rejected bundle: %v, admit got %d bytes", err, len(seen))
		}
	}
	if read := size - from.Len(); read > 2*bundle.Head+4*pieceSize {
		t.Errorf("%d bytes were read of a rejected bundle", read)
	}
	content, digest = some(t, 10)
	if _, err := in.Offer(digest, 10); err != nil {
		t.Fatal(err)
	}
	asked := 0
	if err := in.Receive(t.Context(), bytes.NewReader(content), func(io.Reader) error { asked++; return nil }, quiet); err != nil || asked != 1 {
		t.Errorf("a small bundle: admit was called %d times, %v", asked, err)
	}
}

// TestWrongBundle checks that Receive rejects a bundle with another digest or with more bytes than
// the offer. A bundle with fewer bytes is unfinished.
func TestWrongBundle(t *testing.T) {
	const size = 1<<20 - 1
	content, digest := some(t, size)
	in := emptyInbox(t, size)
	offer := func() {
		t.Helper()
		if _, err := in.Offer(digest, size); err != nil {
			t.Fatal(err)
		}
	}
	offer()
	other := bytes.Clone(content)
	other[77] ^= 1
	if err := in.Receive(t.Context(), bytes.NewReader(other), welcome, quiet); !errors.As(err, new(Refusal)) || !strings.Contains(err.Error(), digest+" was offered") {
		t.Errorf("another content: %v", err)
	}
	if err := in.Drop(); err != nil {
		t.Fatal(err)
	}
	offer()
	if err := in.Receive(t.Context(), bytes.NewReader(append(content, 1)), welcome, quiet); !errors.As(err, new(Refusal)) {
		t.Errorf("a bundle with more bytes than the offer: %v", err)
	}
	if err := in.Drop(); err != nil {
		t.Fatal(err)
	}
	offer()
	if err := in.Receive(t.Context(), bytes.NewReader(content[:100]), welcome, quiet); !errors.As(err, new(Unfinished)) || !strings.Contains(err.Error(), "100 of the bundle's 1048575 bytes") {
		t.Errorf("a bundle with fewer bytes than the offer: %v", err)
	}
}

// TestStalled checks that Receive stops when a source sends no data for StallTimeout, and that the
// received data is retained.
func TestStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		content, digest := some(t, 1<<20)
		in := emptyInbox(t, 1<<20)
		in.StallTimeout = 10 * time.Millisecond
		if _, err := in.Offer(digest, 1<<20); err != nil {
			t.Fatal(err)
		}
		silent, end := io.Pipe()
		defer end.Close()
		err := in.Receive(t.Context(), io.MultiReader(bytes.NewReader(content[:1000]), silent), welcome, quiet)
		if u := (Unfinished{}); !errors.As(err, &u) || u.Bundle.Have != 1000 || !strings.Contains(err.Error(), "no data was received for 10ms") {
			t.Errorf("a silent source: %v", err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("the machine is shutting down"))
		in.StallTimeout = time.Minute
		if err := in.Receive(ctx, silent, welcome, quiet); !errors.As(err, new(Unfinished)) || !strings.Contains(err.Error(), "the machine is shutting down") {
			t.Errorf("a canceled context: %v", err)
		}
	})
}

// trickle is a source that delivers a byte every 10 s.
type trickle struct{}

func (trickle) Read(p []byte) (int, error) {
	time.Sleep(10 * time.Second)
	return copy(p, "x"), nil
}

// TestSlow checks that Receive stops if a source is slower than the minimum pace, and that the
// received data is retained.
func TestSlow(t *testing.T) {
	_, digest := some(t, 1<<20)
	synctest.Test(t, func(t *testing.T) {
		in := emptyInbox(t, 1<<20)
		if _, err := in.Offer(digest, 1<<20); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err := in.Receive(t.Context(), trickle{}, welcome, quiet)
		if u := (Unfinished{}); !errors.As(err, &u) || u.Bundle.Have != 3 || !strings.Contains(err.Error(), "the transfer is too slow: 3 bytes within 30s") {
			t.Errorf("a slow source: %v", err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("Receive took %s", took)
		}
		time.Sleep(time.Minute) // until the goroutine of readAhead has ended
	})
}

// TestOffer checks that a rejected offer changes nothing, and that the space of a replaced bundle
// is available to its successor.
func TestOffer(t *testing.T) {
	const room = 10 << 20
	in := emptyInbox(t, room)
	content, digest := some(t, 1<<20)
	if _, err := in.Offer(digest, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := in.Receive(t.Context(), breaking(content[:1000], io.ErrClosedPipe), welcome, quiet); err == nil {
		t.Fatal("the bundle is complete with 1000 bytes")
	}
	for what, offer := range map[string]func() (Bundle, error){
		"not enough space":  func() (Bundle, error) { return in.Offer(strings.Repeat("a", 64), room+1001) },
		"an invalid digest": func() (Bundle, error) { return in.Offer("../"+strings.Repeat("a", 61), 1) },
		"no size":           func() (Bundle, error) { return in.Offer(strings.Repeat("a", 64), 0) },
	} {
		if _, err := offer(); err == nil || !strings.Contains(err.Error(), "upgrade refused") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := in.Offer(strings.Repeat("a", 64), 20<<20)
	if want := fmt.Sprintf("20 MiB are still needed, %d MiB are free, of which %d are reserved", (room+reserve+1000)>>20, reserve>>20); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("an offer without enough space: %v, want the numbers: %s", err, want)
	}
	if b, err := in.Offer(digest, 1<<20); err != nil || b.Have != 1000 {
		t.Errorf("a rejected offer has changed the inbox: %+v, %v", b, err)
	}
	if b, err := in.Offer(strings.Repeat("a", 64), room+1000); err != nil || b.Have != 0 {
		t.Errorf("replacing the last bundle: %+v, %v", b, err)
	}
	if _, err := os.Stat(in.file()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of the replaced bundle still exists: %v", err)
	}
	if err := os.WriteFile(in.record(), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := in.Offer(digest, 1<<20); err != nil || b.Have != 0 {
		t.Errorf("after a damaged record: %+v, %v", b, err)
	}
}
