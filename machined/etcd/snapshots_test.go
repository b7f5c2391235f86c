package etcd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/supervise"
	"github.com/orlop-os/orlop/pkg/transfer"
)

func hexDigest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// TestSendSnapshot checks that the last message has the digest of the snapshot, and that no digest
// is sent after a failed read.
func TestSendSnapshot(t *testing.T) {
	content := bytes.Repeat([]byte("snapshot"), transfer.ChunkSize/8*2+1)
	var got []byte
	var last *api.EtcdSnapshotResponse
	take := func(r *api.EtcdSnapshotResponse) error {
		got, last = append(got, r.Chunk...), r
		return nil
	}
	about := &api.EtcdSnapshotInfo{Size: int64(len(content))}
	if err := sendSnapshot(about, bytes.NewReader(content), take); err != nil || !bytes.Equal(got, content) || last.Sha256 != hexDigest(content) {
		t.Errorf("%d of %d bytes, digest %q, %v", len(got), len(content), last.Sha256, err)
	}
	broken := io.MultiReader(bytes.NewReader(content), readerFunc(func([]byte) (int, error) { return 0, errors.New("the disk is gone") }))
	if err := sendSnapshot(about, broken, take); err == nil || last.Sha256 != "" {
		t.Errorf("digest %q, %v", last.Sha256, err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestReceiveSnapshot checks that an upload must match its size and digest.
func TestReceiveSnapshot(t *testing.T) {
	content := []byte("all of the data")
	gone := status.Error(codes.Canceled, "the caller is gone")
	for name, c := range map[string]struct {
		comes []string
		end   error
		want  string // part of the error; empty: none
		code  codes.Code
	}{
		"complete":          {[]string{"all of ", "", "the data"}, io.EOF, "", codes.OK},
		"other content":     {[]string{"all of ", "the Data"}, io.EOF, "does not match its size and digest, nothing was changed", codes.InvalidArgument},
		"too short":         {[]string{"all of "}, io.EOF, "does not match its size and digest", codes.InvalidArgument},
		"too long":          {[]string{"all of ", "the data", "!"}, io.EOF, "does not match its size and digest", codes.InvalidArgument},
		"broken connection": {[]string{"all of "}, gone, "cannot receive the snapshot, nothing was changed: the caller is gone", codes.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(Deps{Stopping: t.Context()})
			f, err := os.Create(filepath.Join(t.TempDir(), "snapshot"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			receive := func() (*api.EtcdRestoreRequest, error) {
				if len(c.comes) == 0 {
					return nil, c.end
				}
				next := c.comes[0]
				c.comes = c.comes[1:]
				return &api.EtcdRestoreRequest{Chunk: []byte(next)}, nil
			}
			err = m.receiveSnapshot(receive, &api.EtcdRestoreRequest{Size: int64(len(content)), Sha256: hexDigest(content)}, f)
			if status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.want) {
				t.Errorf("%v; want %v: %q", err, c.code, c.want)
			}
			if text, _ := os.ReadFile(f.Name()); c.want == "" && !bytes.Equal(text, content) {
				t.Errorf("%q", text)
			}
		})
	}
}

// TestTransferEnds checks that a running transfer fails at a shutdown, so the shutdown does not
// wait for a transfer that hangs.
func TestTransferEnds(t *testing.T) {
	working, stop := context.WithCancel(t.Context())
	m := New(Deps{Stopping: working})
	hang := make(chan struct{})
	defer close(hang)
	err := m.transfer(time.Hour, func(func()) error {
		stop()
		<-hang
		return nil
	})
	if status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
}

// TestTransferSlow checks that a transfer fails after its limit, although the caller still moves
// data. So a slow caller cannot block snapshots forever.
func TestTransferSlow(t *testing.T) {
	m := New(Deps{Stopping: t.Context()})
	ended := make(chan struct{})
	defer close(ended)
	err := m.transfer(50*time.Millisecond, func(moved func()) error {
		for {
			select {
			case <-ended:
				return nil
			default:
				moved()
			}
		}
	})
	if status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), "took more than 50ms") {
		t.Error(err)
	}
}

// TestDataReplaced checks that DataReplaced is called also if etcd cannot start after a restore or
// a recovery. The stored request may take effect later, and Nodes of removed machines then exist
// again.
func TestDataReplaced(t *testing.T) {
	replaced := 0
	// This manager of services has no services, so it cannot start etcd.
	k := New(Deps{Stopping: t.Context(), Services: supervise.NewManager(supervise.Config{}), DataReplaced: func() { replaced++ }})
	for name, do := range map[string]func() error{
		"restored":  func() error { _, err := k.activateRestored(nodespec.EtcdRestored{}); return err },
		"recovered": func() error { return k.restartFor(nodespec.ForceNewClusterFile) },
	} {
		replaced = 0
		if err := do(); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
		if replaced != 1 {
			t.Errorf("%s: DataReplaced was called %d times, want 1", name, replaced)
		}
	}
}

// TestRestoreError checks that the error of a failed restore says "nothing was changed" only if no
// request for the restore was stored.
func TestRestoreError(t *testing.T) {
	dir, cut := t.TempDir(), errors.New("the transfer was interrupted")
	if err := restoreError(dir, cut); !strings.Contains(err.Error(), "nothing was changed") {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, nodespec.PendingRestoreFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := restoreError(dir, cut); status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "nothing was changed") {
		t.Error(err)
	}
}
