package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	agecrypt "filippo.io/age"
	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

func etcdSnapshotCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var to []string
	var out, storedName string
	var force bool
	c := &cobra.Command{
		Use:   "snapshot --out FILE [--to RECIPIENT...] [--from-machine NAME]",
		Short: "Take a backup of the cluster's data",
		Long: "Take a backup of the present data of Kubernetes, in etcd's own format. The machine checks the snapshot. The file\n" +
			"appears only after the whole snapshot has arrived. The command needs the role etcd-backup, or admin.\n\n" +
			"Protect the file like an admin's key. The Secrets in it are encrypted with the cluster's key, but all other data\n" +
			"is plain text. With --to the file is encrypted (age-encryption.org) before it is written to the disk; RECIPIENT is\n" +
			"age1…, an SSH public key, or a file with such keys. `age -d -i KEY FILE` decrypts the file. Also store the\n" +
			"configuration, or the file of `orlopctl gen secrets`: the cluster's key in it is necessary to decrypt the Secrets.\n\n" +
			"With --from-machine, the command takes no new snapshot. It downloads a stored snapshot of the machine\n" +
			"(`orlopctl etcd snapshots`) without a change: a snapshot that is stored encrypted stays encrypted.",
		Example: "  orlopctl etcd snapshot --out cluster.db.age --to age1qz0…\n  orlopctl etcd snapshot --out cluster.db.age --from-machine 20261122T201140Z-1234-3.7.0.db.age",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			readers, err := recipients(to)
			if err != nil {
				return err
			}
			if isEncrypted(storedName) && len(readers) > 0 {
				return exit.Usagef("--to: cannot encrypt %s: it is encrypted", storedName)
			}
			if err := vacant(out, force); err != nil {
				return err
			}
			return conn.CallFor(etcdTimeout, func(ctx context.Context, c *client.Client) error {
				return etcdSnapshot(ctx, ios, c, storedName, out, readers)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&out, "out", "", "file to write")
	f.StringArrayVar(&to, "to", nil, "encrypt the file for this recipient; repeatable")
	f.StringVar(&storedName, "from-machine", "", "download the stored snapshot with this name (orlopctl etcd snapshots)")
	f.BoolVar(&force, "force", false, "replace an existing file")
	must(c.MarkFlagRequired("out"))
	return c
}

// takenSnapshot is the result of the snapshot command in JSON and YAML.
type takenSnapshot struct {
	File     string `json:"file"`
	Revision int64  `json:"revision"`
	Keys     int64  `json:"keys"`   // 0 for a stored snapshot, which the machine does not parse
	Size     int64  `json:"size"`   // bytes of the snapshot
	SHA256   string `json:"sha256"` // of the snapshot, before it is encrypted
	Version  string `json:"version"`
}

// etcdSnapshot writes a snapshot from a machine to a file, encrypted if there are recipients.
func etcdSnapshot(ctx context.Context, ios *iostreams.Streams, c *client.Client, storedName, out string, readers []agecrypt.Recipient) error {
	var taken takenSnapshot
	err := secretfile.WriteAtomic(out, func(file io.Writer) error {
		encrypted, err := encrypt(file, readers)
		if err != nil {
			return err
		}
		if taken, err = receiveSnapshot(ctx, ios, c, storedName, encrypted); err != nil {
			if errors.Is(err, errIncomplete) {
				return fmt.Errorf("%w, and no file was written; try again", err)
			}
			return err
		}
		if err := encrypted.Close(); err != nil {
			return fmt.Errorf("%s: cannot write: %w", out, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	taken.File = out
	if !ios.Human() {
		return ios.PrintPlain(taken)
	}
	keys := ""
	if storedName == "" {
		keys = format.Count(int(taken.Keys), "key") + ", "
	}
	ios.Printf("wrote %s: revision %d, %s%s, SHA-256 %s\n", out, taken.Revision, keys, format.Size(taken.Size), taken.SHA256)
	return nil
}

// errIncomplete is returned when the size or the hash of a received snapshot differs from the
// announced value.
var errIncomplete = errors.New("etcd: the snapshot is incomplete or damaged")

// receiveSnapshot writes a snapshot from a machine to a writer: the stored snapshot with this name,
// or a new snapshot if the name is empty. It returns errIncomplete if the size or the hash is
// wrong.
func receiveSnapshot(ctx context.Context, ios *iostreams.Streams, c *client.Client, storedName string, to io.Writer) (taken takenSnapshot, err error) {
	stream, err := c.Etcd.Snapshot(ctx, &api.EtcdSnapshotRequest{Stored: storedName})
	if err != nil {
		return taken, err
	}
	sum, came, announced := sha256.New(), int64(0), ""
	progress := func(int64) {}
	err = connect.Each(stream.Recv, func(r *api.EtcdSnapshotResponse) error {
		if r.Header != nil {
			taken.Revision, taken.Keys, taken.Size, taken.Version = r.Header.Revision, r.Header.Keys, r.Header.Size, r.Header.Version
			progress = newProgress(ios, "received", taken.Size)
		}
		announced = r.Sha256
		sum.Write(r.Chunk)
		came += int64(len(r.Chunk))
		progress(came)
		if _, err := to.Write(r.Chunk); err != nil {
			return fmt.Errorf("etcd: cannot write the snapshot: %w", err)
		}
		return nil
	})
	if err != nil {
		return taken, err
	}
	if taken.SHA256 = hex.EncodeToString(sum.Sum(nil)); announced != taken.SHA256 || came != taken.Size {
		return taken, errIncomplete
	}
	return taken, nil
}

// isEncrypted reports whether a stored snapshot is encrypted. The names of encrypted snapshots end
// with ".age".
func isEncrypted(storedName string) bool { return strings.HasSuffix(storedName, ".age") }

func etcdSnapshotsCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use:   "snapshots",
		Short: "List the stored snapshots of the machine",
		Long: "List the stored snapshots of the machine, the newest first, also when etcd does not run.\n" +
			"Cluster.spec.etcd.snapshots configures their interval, their retention, their recipients, and their upload.\n" +
			"`orlopctl etcd restore --from-machine NAME` restores a snapshot. The stored snapshots are on the machine's own\n" +
			"disk: if the disk is lost, all snapshots that were not uploaded are lost too. `orlopctl etcd snapshot` takes a\n" +
			"snapshot to store elsewhere.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Etcd.ListSnapshots(ctx, &api.EtcdListSnapshotsRequest{})
				if err != nil {
					return err
				}
				if ios.Human() && len(answer.Snapshots) == 0 {
					ios.Println("the machine has no snapshot")
				} else if err := ios.Print(answer, func(w *tabwriter.Writer) { snapshotsTable(w, answer) }); err != nil {
					return err
				}
				if ios.Human() && answer.Target != "" {
					ios.Println("they are uploaded to " + answer.Target)
				}
				if ios.Human() && answer.Problem != "" {
					ios.Println("the last upload failed: " + answer.Problem)
				}
				return nil
			})
		},
	}
}

func snapshotsTable(w io.Writer, answer *api.EtcdListSnapshotsResponse) {
	iostreams.Row(w, "NAME", "TIME", "REVISION", "SIZE", "VERSION", "ENCRYPTED", "SENT")
	for _, s := range answer.Snapshots {
		encrypted, sent := "no", "-"
		if s.Encrypted {
			encrypted = "yes"
			if answer.Target != "" {
				sent = "not yet"
			}
		}
		if s.Uploaded != nil {
			sent = s.Uploaded.AsTime().Format(time.RFC3339)
		}
		iostreams.Row(w, s.Name, s.At.AsTime().Format(time.RFC3339), strconv.FormatInt(s.Revision, 10), format.Size(s.Size), s.Version, encrypted, sent)
	}
}

func etcdTakeCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	return &cobra.Command{
		Use:   "take-snapshot",
		Short: "Make the machine take a stored snapshot now, and upload it",
		Long: "Make the machine take a stored snapshot now, as configured in Cluster.spec.etcd.snapshots, and upload it to\n" +
			"the configured target. Use it, for example, to check a new target before the next scheduled snapshot. If there are\n" +
			"more snapshots than the retention allows, the machine deletes the oldest one.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return conn.CallFor(etcdTimeout, func(ctx context.Context, c *client.Client) error {
				answer, err := c.Etcd.TakeSnapshot(ctx, &api.EtcdTakeSnapshotRequest{})
				if err != nil {
					return err
				}
				if answer.Problem != "" {
					return &exit.Error{
						Code: exit.Failure, Err: fmt.Errorf("etcd: snapshot %s is stored, but the upload failed: %s", answer.Snapshot.Name, answer.Problem),
						Hint: "the machine retries automatically; `orlopctl etcd snapshots` shows the result",
					}
				}
				if !ios.Human() {
					return ios.Print(answer, nil)
				}
				how := "not encrypted"
				if answer.Snapshot.Encrypted {
					how = "encrypted"
				}
				if answer.Snapshot.Uploaded != nil {
					how += ", sent"
				}
				ios.Printf("stored: %s, %s, %s\n", answer.Snapshot.Name, format.Size(answer.Snapshot.Size), how)
				return nil
			})
		},
	}
}
