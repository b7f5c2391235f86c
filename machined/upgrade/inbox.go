package upgrade

import (
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// Inbox is the directory on DATA that holds one bundle: the bundle that is being received, or the
// last received bundle. Only one caller may use it at a time.
type Inbox struct {
	Dir string
	// Free returns the free bytes of the file system of a directory.
	Free func(dir string) (int64, error)
	// StallTimeout is the maximum time without data from a source.
	StallTimeout time.Duration
}

// Bundle describes the bundle in the Inbox.
type Bundle struct {
	SHA256 string `json:"sha256"` // lower-case hexadecimal
	Size   int64  `json:"size"`   // bytes
	// number of bytes, from the beginning, that are on the disk and survive a power cut
	Have int64  `json:"have"`
	Hash []byte `json:"hash"` // state of SHA-256 after these bytes; empty: no bytes received yet
}

// Refusal is the reason for which this machine cannot install a bundle. Another transfer of the
// same bundle would fail, too, so the machine does not retain the bundle.
type Refusal struct{ Err error }

func (r Refusal) Error() string { return "upgrade refused, nothing was written: " + r.Err.Error() }

func (r Refusal) Unwrap() error { return r.Err }

// Unfinished is the reason why a transfer ended early. The transfer can be resumed.
type Unfinished struct {
	Bundle Bundle
	Err    error
}

func (u Unfinished) Error() string {
	return fmt.Sprintf("upgrade: %d of the bundle's %d bytes are stored: %v; the same upgrade resumes from there", u.Bundle.Have, u.Bundle.Size, u.Err)
}

func (u Unfinished) Unwrap() error { return u.Err }

const (
	// reserve is the space on DATA, in bytes, that a bundle must leave free for etcd, logs and
	// other data.
	reserve = 512 << 20
	// flushBytes is the number of bytes between two flushes. After a power cut, a source sends at
	// most this number of bytes again.
	flushBytes = 16 << 20
	// pieceSize is the number of bytes per read from a source. Two pieces are in memory at a time.
	pieceSize = 256 << 10
)

// FreeSpace returns the bytes of a file system that are available to unprivileged processes.
func FreeSpace(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * s.Bsize, nil
}

var digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Offer prepares the Inbox for a bundle and returns its description with the number of bytes that
// are already stored. If the Inbox holds another bundle, Offer deletes that bundle. If DATA has too
// little space, Offer returns an error and changes nothing.
func (in Inbox) Offer(sha256 string, size int64) (Bundle, error) {
	if !digestForm.MatchString(sha256) || size <= 0 {
		return Bundle{}, fmt.Errorf("upgrade refused: a bundle of %d bytes with SHA-256 %q is invalid", size, sha256)
	}
	last, err := in.Bundle()
	if err != nil {
		last = Bundle{} // the new record replaces the unreadable record
	}
	offered := Bundle{SHA256: sha256, Size: size}
	if last.SHA256 == sha256 && last.Size == size {
		offered.Have, offered.Hash = last.Have, last.Hash
	}
	if err := os.MkdirAll(in.Dir, 0o700); err != nil {
		return Bundle{}, fmt.Errorf("upgrade: cannot make room for a bundle: %w", err)
	}
	free, err := in.Free(in.Dir)
	if err != nil {
		return Bundle{}, fmt.Errorf("upgrade: cannot read the free space of DATA: %w", err)
	}
	if need, room := size-offered.Have, free+last.Have-offered.Have-reserve; need > room {
		return Bundle{}, fmt.Errorf("upgrade refused: DATA has too little space for the bundle: %d MiB are still needed, %d MiB are free, of which %d are reserved for running services; delete unused images or volumes",
			mebibytes(need), (room+reserve)>>20, reserve>>20)
	}
	if offered.Have > 0 {
		return offered, nil
	}
	if err := in.Drop(); err != nil {
		return Bundle{}, err
	}
	return offered, in.saveRecord(offered)
}

// mebibytes converts bytes to MiB and rounds up.
func mebibytes(bytes int64) int64 { return (bytes + 1<<20 - 1) >> 20 }

// Bundle returns the description of the bundle in the Inbox. It returns the zero Bundle if there is
// no bundle.
func (in Inbox) Bundle() (Bundle, error) {
	var b Bundle
	text, err := os.ReadFile(in.record())
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &b)
	}
	if err != nil {
		return Bundle{}, fmt.Errorf("upgrade: cannot read the record of the bundle: %w", err)
	}
	return b, nil
}

// Drop removes the bundle. A missing bundle is not an error.
func (in Inbox) Drop() error {
	for _, name := range []string{in.record(), in.file()} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("upgrade: cannot remove the last bundle: %w", err)
		}
	}
	return nil
}

// Receive appends data from a source until the bundle is complete and has the offered digest. Once
// the head of the bundle is stored, Receive calls admit(), which returns an error to reject the
// bundle. After that, Receive calls done() from time to time with the number of stored bytes. The
// received data is on the disk when Receive returns, even if it returns an error. A goroutine may
// still read from the source afterwards, so the caller must close the source.
func (in Inbox) Receive(ctx context.Context, from io.Reader, admit func(head io.Reader) error, done func(have int64)) (err error) {
	b, err := in.Bundle()
	if err != nil {
		return err
	}
	if b.Size == 0 {
		return errors.New("upgrade: no bundle was offered")
	}
	sum := sha256.New().(digest)
	if len(b.Hash) > 0 {
		if err := sum.UnmarshalBinary(b.Hash); err != nil {
			return fmt.Errorf("upgrade: cannot resume the bundle: %w", err)
		}
	}
	f, err := os.OpenFile(in.file(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("upgrade: cannot store the bundle: %w", err)
	}
	defer func() { err = errors.Join(err, in.flush(f, b, sum), f.Close()) }()
	if err := f.Truncate(b.Have); err != nil {
		return fmt.Errorf("upgrade: cannot store the bundle: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pieces, meter := readAhead(ctx, from), transfer.Meter{Pace: transfer.DefaultPace}
	admitted, flushed, start := false, b.Have, b.Have
	to := transfer.ProgressWriter(io.NewOffsetWriter(f, start), func(n int64) {
		if admitted {
			done(start + n)
		}
	})
	for {
		if !admitted && b.Have >= min(b.Size, bundle.Head) {
			if err := admit(io.NewSectionReader(f, 0, b.Have)); err != nil {
				return err
			}
			admitted = true
		}
		if b.Have == b.Size {
			if got := hex.EncodeToString(sum.Sum(nil)); got != b.SHA256 {
				return Refusal{fmt.Errorf("the received bundle has SHA-256 %s, but %s was offered; send it again", got, b.SHA256)}
			}
			return nil
		}
		began := time.Now()
		p, err := in.next(ctx, pieces)
		if slow := meter.Add(time.Since(began), len(p)); err == nil && slow != nil {
			err = fmt.Errorf("the transfer %w", slow)
		}
		if len(p) > 0 {
			if int64(len(p)) > b.Size-b.Have {
				return Refusal{fmt.Errorf("more than the offered %d bytes were received", b.Size)}
			}
			if _, err := to.Write(p); err != nil {
				return fmt.Errorf("upgrade: cannot store the bundle: %w", err)
			}
			sum.Write(p)
			b.Have += int64(len(p))
		}
		if err != nil && b.Have < b.Size {
			return Unfinished{b, err}
		}
		if b.Have-flushed >= flushBytes {
			if err := in.flush(f, b, sum); err != nil {
				return err
			}
			flushed = b.Have
		}
	}
}

// piece is the result of a read.
type piece struct {
	content []byte
	err     error
}

// readAhead returns a channel with the pieces of a source, and reads one piece ahead. The reads end
// at the first error of the source, or when ctx ends. The content of a piece is valid until the
// receiver takes the next piece.
func readAhead(ctx context.Context, from io.Reader) <-chan piece {
	pieces := make(chan piece)
	go func() {
		buffers := [2][]byte{make([]byte, pieceSize), make([]byte, pieceSize)}
		for i := 0; ; i = 1 - i {
			n := 0
			err := panics.Do("reading a bundle", func() (err error) { n, err = from.Read(buffers[i]); return err })
			select {
			case pieces <- piece{buffers[i][:n], err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return pieces
}

// next returns the next piece. It returns an error if no piece arrives within StallTimeout.
func (in Inbox) next(ctx context.Context, pieces <-chan piece) ([]byte, error) {
	late := time.NewTimer(in.StallTimeout)
	defer late.Stop()
	select {
	case p := <-pieces:
		if errors.Is(p.err, io.EOF) {
			p.err = errors.New("the sender has closed the stream")
		}
		return p.content, p.err
	case <-late.C:
		return nil, fmt.Errorf("no data was received for %v", in.StallTimeout)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Open opens the bundle at its beginning.
func (in Inbox) Open() (*os.File, error) {
	f, err := os.Open(in.file())
	if err != nil {
		return nil, fmt.Errorf("upgrade: cannot read the bundle: %w", err)
	}
	return f, nil
}

// digest is a hash that can store its state. The SHA-256 of crypto/sha256 implements the interface.
type digest interface {
	hash.Hash
	encoding.BinaryMarshaler
	encoding.BinaryUnmarshaler
}

// flush writes the received data to the disk and then stores the number of bytes in the record.
func (in Inbox) flush(f *os.File, b Bundle, sum digest) (err error) {
	if err := f.Sync(); err != nil {
		return fmt.Errorf("upgrade: cannot store the bundle: %w", err)
	}
	if b.Hash, err = sum.MarshalBinary(); err != nil {
		return fmt.Errorf("upgrade: cannot store the bundle: %w", err)
	}
	return in.saveRecord(b)
}

func (in Inbox) saveRecord(b Bundle) error {
	text, err := json.Marshal(b)
	if err == nil {
		err = safefile.WriteFile(in.record(), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("upgrade: cannot record the stored size of the bundle: %w", err)
	}
	return nil
}

func (in Inbox) file() string { return filepath.Join(in.Dir, "bundle") }

func (in Inbox) record() string { return filepath.Join(in.Dir, "bundle.json") }
