package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	agecrypt "filippo.io/age"
	"filippo.io/age/agessh"
	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

func etcdRestoreCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var undo, yes bool
	var storedName string
	var keys []string
	c := &cobra.Command{
		Use:   "restore FILE | --from-machine NAME | --undo [--identity KEY...]",
		Short: "Replace the cluster's data by a backup",
		Long: "Replace the cluster's data by a backup of `orlopctl etcd snapshot`, or by a snapshot of `orlopctl etcd\n" +
			"snapshots`, and wait until etcd serves it. All later writes are lost; the machine retains the replaced data\n" +
			"until the next restore, and --undo restores it. The API server is unreachable for some seconds. Pods continue\n" +
			"to run; pods that are not in the backup are ended, and missing pods that are in the backup are started.\n\n" +
			"An encrypted backup needs --identity: a file of `age-keygen`, or an SSH private key. This computer decrypts the\n" +
			"backup, and writes neither the key nor the decrypted data to a disk. An encrypted snapshot of --from-machine is\n" +
			"downloaded, decrypted here, and uploaded again over the encrypted connection.\n\n" +
			"The command also works while etcd or the API server does not run, and on a new machine with the configuration of\n" +
			"the old machine. The machine checks the backup before it changes anything. You must type the machine's name\n" +
			"first, unless --yes is given.",
		Example: "  orlopctl etcd restore cluster.db\n  orlopctl etcd restore --from-machine 20261122T201140Z-1234-3.7.0.db\n  orlopctl etcd restore --from-machine 20261122T201140Z-1234-3.7.0.db.age --identity operator.key\n  orlopctl etcd restore --undo",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if undo && storedName != "" || (undo || storedName != "") == (len(args) == 1) {
				return exit.Usagef("etcd: cannot restore: expected a file, or --from-machine, or --undo")
			}
			identities, err := identities(keys)
			if err != nil {
				return err
			}
			if isEncrypted(storedName) && len(identities) == 0 {
				return needsIdentity(storedName)
			}
			var from *stored
			if len(args) == 1 {
				file, err := os.Open(args[0])
				if err != nil {
					return exit.Usagef("etcd: cannot read: %w", err)
				}
				defer func() { _ = file.Close() }() // the file was only read
				if from, err = readSnapshot(file, args[0], identities); err != nil {
					return err
				}
			}
			return conn.CallFor(etcdTimeout, func(ctx context.Context, c *client.Client) error {
				if !yes {
					if err := confirm(ctx, ios, c, "replace the data of its cluster"); err != nil {
						return err
					}
				}
				if isEncrypted(storedName) {
					return etcdRestoreEncrypted(ctx, ios, c, storedName, identities)
				}
				return etcdRestore(ctx, ios, c, &api.EtcdRestoreRequest{Undo: undo, Stored: storedName}, from)
			})
		},
	}
	c.Flags().StringVar(&storedName, "from-machine", "", "restore the stored snapshot with this name (orlopctl etcd snapshots)")
	c.Flags().StringArrayVarP(&keys, "identity", "i", nil, "file with a key that decrypts the backup; repeatable")
	c.Flags().BoolVar(&undo, "undo", false, "restore the data that the last restore replaced")
	c.Flags().BoolVar(&yes, "yes", false, "do not prompt for confirmation")
	return c
}

// needsIdentity returns the error for an encrypted snapshot without a key.
func needsIdentity(name string) error {
	return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%s: cannot restore: it is encrypted", name), Hint: "name the file with its key: `--identity KEY`"}
}

// etcdRestoreEncrypted restores a stored snapshot that the machine cannot decrypt: it downloads the
// encrypted snapshot and uploads it decrypted.
func etcdRestoreEncrypted(ctx context.Context, ios *iostreams.Streams, c *client.Client, storedName string, identities []agecrypt.Identity) error {
	file, err := os.CreateTemp("", "orlop-snapshot-*") // mode 0600
	if err != nil {
		return fmt.Errorf("etcd: cannot fetch the snapshot: %w", err)
	}
	// If the file cannot be removed, it discloses no data, because it is encrypted.
	defer func() { _ = errors.Join(file.Close(), os.Remove(file.Name())) }()
	if _, err := receiveSnapshot(ctx, ios, c, storedName, file); err != nil {
		if errors.Is(err, errIncomplete) {
			return fmt.Errorf("%w, and nothing was changed; try again", err)
		}
		return err
	}
	from, err := readSnapshot(file, storedName, identities)
	if err != nil {
		return err
	}
	return etcdRestore(ctx, ios, c, &api.EtcdRestoreRequest{}, from)
}

// stored is a snapshot in a file, possibly encrypted.
type stored struct {
	file       *os.File
	name       string              // name that the caller uses
	identities []agecrypt.Identity // for an encrypted snapshot
	size       int64               // bytes, decrypted
	sha256     string              // of the decrypted data
}

// readSnapshot reads a snapshot to its end, and returns it with its size and hash. It returns an
// error if the snapshot is encrypted and no identity decrypts it.
func readSnapshot(file *os.File, name string, identities []agecrypt.Identity) (*stored, error) {
	const header = "age-encryption.org/"
	begins := make([]byte, len(header))
	if _, err := file.ReadAt(begins, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, exit.Usagef("%s: cannot read the snapshot: %w", name, err)
	}
	s := &stored{file: file, name: name}
	if string(begins) == header {
		if len(identities) == 0 {
			return nil, needsIdentity(name)
		}
		s.identities = identities
	}
	text, err := s.open()
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	if s.size, err = io.Copy(sum, text); err != nil {
		return nil, exit.Usagef("%s: cannot read the snapshot: %w", name, err)
	}
	s.sha256 = hex.EncodeToString(sum.Sum(nil))
	return s, nil
}

// open returns a reader of the snapshot from its beginning, decrypted. age verifies each chunk of
// an encrypted snapshot before it returns the chunk.
func (s *stored) open() (io.Reader, error) {
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return nil, exit.Usagef("%s: cannot read the snapshot: %w", s.name, err)
	}
	if s.identities == nil {
		return s.file, nil
	}
	text, err := agecrypt.Decrypt(bufio.NewReader(s.file), s.identities...)
	if none := new(agecrypt.NoIdentityMatchError); errors.As(err, &none) {
		return nil, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%s: cannot decrypt: it is encrypted for another key", s.name), Hint: "--identity names a file with a key for it; repeatable"}
	}
	if err != nil {
		return nil, exit.Usagef("%s: cannot decrypt: %w", s.name, err)
	}
	return text, nil
}

// identities reads keys for decryption from files. Its errors contain no part of a key.
func identities(files []string) (all []agecrypt.Identity, err error) {
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, exit.Usagef("--identity: cannot read: %w", err)
		}
		text, err := io.ReadAll(io.LimitReader(f, maxRecipients))
		_ = f.Close() // the file was only read
		if err != nil {
			return nil, exit.Usagef("--identity: cannot read: %w", err)
		}
		bad := func(what, hint string) error {
			return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("--identity %s: cannot use: %s", name, what), Hint: hint}
		}
		switch content := string(text); {
		case strings.HasPrefix(content, "age-encryption.org/"):
			return nil, bad("it is encrypted", "decrypt it where others cannot read it: `age -d "+name+"`")
		case keyEdge.MatchString(content):
			key, err := agessh.ParseIdentity(text)
			if err != nil {
				return nil, bad("it is no SSH key that decrypts: ed25519 or RSA, without a passphrase", "`ssh-keygen -p` on a copy removes a passphrase")
			}
			all = append(all, key)
		default:
			keys, err := agecrypt.ParseIdentities(strings.NewReader(content))
			if err != nil {
				return nil, bad("it contains no key", "expected a file of `age-keygen`, with AGE-SECRET-KEY-1…")
			}
			all = append(all, keys...)
		}
	}
	return all, nil
}

// etcdRestore sends the request `first`, uploads the snapshot `from`, waits for the end of the
// restore and prints the result. If from is nil, it uploads nothing: the request then names a
// stored snapshot of the machine, or asks for an undo.
func etcdRestore(ctx context.Context, ios *iostreams.Streams, c *client.Client, first *api.EtcdRestoreRequest, from *stored) error {
	var text io.Reader
	if from != nil {
		var err error
		if text, err = from.open(); err != nil {
			return err
		}
		first.Size, first.Sha256 = from.size, from.sha256
	}
	stream, err := c.Etcd.Restore(ctx)
	if err != nil {
		return err
	}
	err = stream.Send(first)
	if err == nil && from != nil {
		err = send(text, newProgress(ios, "sent", first.Size), func(chunk []byte) error { return stream.Send(&api.EtcdRestoreRequest{Chunk: chunk}) })
	}
	if err != nil && !errors.Is(err, io.EOF) { // after io.EOF, CloseAndRecv returns the reason
		return err
	}
	answer, err := stream.CloseAndRecv()
	if err != nil {
		return mayContinue(err, "the machine may continue: check RESTORED of `orlopctl etcd status` before you restore again, because --undo only undoes the last restore")
	}
	if ios.Human() {
		ios.Println("restored: " + restoredText(answer.Restored))
		ios.Println("`orlopctl etcd restore --undo` undoes it; `orlopctl health` waits for the cluster")
		return nil
	}
	return ios.Print(answer, nil)
}
