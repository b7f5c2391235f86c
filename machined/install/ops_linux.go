package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/siderolabs/go-blockdevice/v2/block"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"

	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/slot/esp"
	"github.com/orlop-os/orlop/pkg/transfer"
	"github.com/orlop-os/orlop/pkg/verity"
)

// Do wipes both ends of the disk, which removes both copies of the old table. It wipes the ranges
// of the new partitions, which are then blank. Then it writes the table, backup first. The disk and
// its partitions get random GUIDs, by which init distinguishes the disk from others with the same
// system (docs/decisions/0049-system-disk.md). The kernel knows the partitions when Do returns.
func (d CreatePartitionTable) Do(context.Context) error {
	if err := d.divide(); err != nil {
		return fmt.Errorf("%s: cannot partition: %w", d.Disk, err)
	}
	return nil
}

func (d CreatePartitionTable) divide() error {
	device, plain, err := parttable.Open(d.Disk, block.OpenForWrite(), block.OpenAssertNotMounted())
	if err != nil {
		return err
	}
	defer device.Close()
	if err := parttable.Wipe(device, 0, plain.GetSize()); err != nil {
		return err
	}
	table, err := gpt.New(parttable.Ordered(plain))
	if err != nil {
		return err
	}
	for _, p := range d.Partitions {
		_, made, err := table.AllocatePartition(p.Size, p.Label, p.Type)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Label, err)
		}
		if err := parttable.Wipe(device, made.FirstLBA*uint64(plain.GetSectorSize()), p.Size); err != nil {
			return err
		}
	}
	return table.Write()
}

// Do copies the root from memory.
func (w WriteRoot) Do(ctx context.Context) error {
	from, err := os.Open(paths.SystemRoot)
	if err != nil {
		return err
	}
	defer from.Close()
	return verity.Write(w.Device, func(to io.Writer) error {
		_, err := io.Copy(transfer.ProgressWriter(to, func(n int64) { w.report(n, w.Size) }), contextReader{ctx, from})
		return err
	})
}

// contextReader is a reader that ends with its context.
type contextReader struct {
	ctx  context.Context
	from io.Reader
}

func (s contextReader) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.from.Read(p)
}

// stateMount is the temporary mount point of STATE.
const stateMount = paths.Run + "/install"

// Do mounts STATE, writes the files, and unmounts STATE, which flushes the files.
func (k WriteState) Do(context.Context) (err error) {
	m := mount.Mount{Source: k.Device, Target: stateMount, Type: "ext4", Flags: mount.NoSuid | mount.NoDev | mount.NoExec}
	if err := m.Do(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mount.Unmount(stateMount)) }()
	for _, f := range k.files {
		name := filepath.Join(stateMount, strings.TrimPrefix(f.Name, paths.State))
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return err
		}
		if err := safefile.WriteFile(name, f.Content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Do writes the boot image as a committed entry, because there is no older version for a rollback.
// It first writes the signed statement, which other machines need to fetch this version.
func (e AddBootEntry) Do(context.Context) error {
	statement, err := os.ReadFile(paths.SystemStatement)
	if err == nil {
		err = e.boot.Write(esp.Statement(e.Version), bytes.NewReader(statement))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.Open(paths.SystemUKI)
	if err != nil {
		return err
	}
	defer f.Close()
	return e.boot.AddEntry(slot.Entry{Version: e.Version}, f)
}

// Do writes the loader's settings, the keys for Secure Boot that the loader enrolls, and then the
// loader under the name that the firmware expects.
func (l WriteLoader) Do(context.Context) error {
	settings, err := os.ReadFile(paths.SystemLoaderConfig)
	if errors.Is(err, fs.ErrNotExist) {
		settings, err = []byte(esp.LoaderConfigText), nil
	} else if err == nil {
		err = l.writeKeys()
	}
	if err != nil {
		return err
	}
	if err := l.boot.Write(esp.LoaderConfig, bytes.NewReader(settings)); err != nil {
		return err
	}
	f, err := os.Open(paths.SystemLoader)
	if err != nil {
		return err
	}
	defer f.Close()
	return l.boot.Write(esp.Loader, f)
}

// writeKeys writes the keys for Secure Boot.
func (l WriteLoader) writeKeys() error {
	for _, name := range esp.KeyFiles {
		key, err := os.ReadFile(filepath.Join(paths.System, name))
		if err != nil {
			return err
		}
		if err := l.boot.Write(esp.KeysDir+"/"+name, bytes.NewReader(key)); err != nil {
			return err
		}
	}
	return nil
}
