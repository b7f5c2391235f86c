package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	agecrypt "filippo.io/age"
	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

// etcdTimeout bounds what moves all of the cluster's data: 4 GiB at most.
const etcdTimeout = 30 * time.Minute

func (t *tool) etcdCommand() *cobra.Command {
	c := &cobra.Command{Use: "etcd", Short: "The cluster's data: how they are, their backup, and their way back"}
	alarm := &cobra.Command{Use: "alarm", Short: "What etcd complains of"}
	alarm.AddCommand(
		&cobra.Command{
			Use: "list", Short: "List the alarms that are raised", Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error { return t.etcdAlarms() },
		},
		&cobra.Command{
			Use: "disarm", Short: "Take back all alarms, so that etcd takes writes again", Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error {
				return t.call(func(ctx context.Context, c *client.Client) error {
					answer, err := c.Etcd.Disarm(ctx, &api.EtcdDisarmRequest{})
					if err != nil {
						return err
					}
					return t.printAlarms(answer.Alarms, "taken back: ")
				})
			},
		},
	)
	c.AddCommand(t.etcdSnapshotCommand(), t.etcdRestoreCommand(), t.etcdMembersCommand(), t.etcdRemoveCommand(), t.etcdRecoverCommand(), t.etcdRejoinCommand(), alarm,
		&cobra.Command{
			Use:   "snapshots",
			Short: "List the snapshots that the machine has taken by itself",
			Long: "List the snapshots that the machine has taken by itself, the newest first, also when etcd does not run. Cluster.spec.etcd.snapshots says\n" +
				"how often it does, and how many it keeps. `orlopctl etcd restore --from-machine NAME` restores one. They lie on the machine's own disk,\n" +
				"and are gone with it: `orlopctl etcd snapshot` takes one to keep elsewhere.",
			Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error {
				return t.call(func(ctx context.Context, c *client.Client) error {
					answer, err := c.Etcd.List(ctx, &api.EtcdListRequest{})
					if err != nil {
						return err
					}
					if t.human() && len(answer.Snapshots) == 0 {
						t.println("the machine has no snapshot")
						return nil
					}
					return t.print(answer, func(w *tabwriter.Writer) {
						row(w, "NAME", "TIME", "REVISION", "SIZE", "VERSION")
						for _, s := range answer.Snapshots {
							row(w, s.Name, s.At.AsTime().Format(time.RFC3339), strconv.FormatInt(s.Revision, 10), size(s.Size), s.Version)
						}
					})
				})
			},
		},
		&cobra.Command{
			Use: "status", Short: "Show how etcd is, also when it does not run", Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error {
				return t.call(func(ctx context.Context, c *client.Client) error {
					answer, err := c.Etcd.Status(ctx, &api.EtcdStatusRequest{})
					if err != nil {
						return err
					}
					return t.print(answer, func(w *tabwriter.Writer) { etcdTable(w, answer) })
				})
			},
		},
		&cobra.Command{
			Use:   "defrag",
			Short: "Give the space that the database does not use back to the disk",
			Long: "Give the space that the database does not use back to the disk. etcd answers nobody meanwhile, which takes seconds. If the alarm\n" +
				"NOSPACE is raised, old revisions are dropped first; `orlopctl etcd alarm disarm` then lets etcd take writes again.",
			Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error {
				return t.callFor(etcdTimeout, func(ctx context.Context, c *client.Client) error {
					answer, err := c.Etcd.Defragment(ctx, &api.EtcdDefragmentRequest{})
					if err != nil {
						return err
					}
					if t.human() {
						t.println("the database had " + size(answer.Before) + ", and has " + size(answer.After))
						return nil
					}
					return t.print(answer, nil)
				})
			},
		},
	)
	return c
}

func etcdTable(w io.Writer, s *api.EtcdStatusResponse) {
	number := func(name string, n int64, text string) {
		if n != 0 {
			row(w, name, text)
		}
	}
	row(w, "MEMBER", s.Member)
	if s.Problem == "" {
		leader := "there is none"
		switch s.Leader {
		case s.Id:
			leader = "this member"
		case "":
		default:
			leader = s.Leader
		}
		row(w, "LEADER", leader)
		row(w, "VERSION", s.Version)
	} else {
		row(w, "PROBLEM", s.Problem)
	}
	number("REVISION", s.Revision, strconv.FormatInt(s.Revision, 10))
	number("RAFT", int64(s.RaftIndex), fmt.Sprintf("index %d, term %d", s.RaftIndex, s.RaftTerm))
	number("SIZE", s.Size, size(s.Size))
	number("IN USE", s.Used, size(s.Used)+", `orlopctl etcd defrag` gives back "+size(s.Size-s.Used))
	number("QUOTA", s.Quota, size(s.Quota))
	row(w, "ALARMS", orDash(strings.Join(s.Alarms, ", ")))
	if s.Restored != nil {
		row(w, "RESTORED", s.Restored.At.AsTime().Format(time.RFC3339), restoredText(s.Restored)+", by "+s.Restored.By)
	}
	number("UNDO", s.UndoSize, "what that has replaced, "+size(s.UndoSize)+": `orlopctl etcd restore --undo`")
}

// restoredText says what took the place of what.
func restoredText(r *api.EtcdRestored) string {
	text := fmt.Sprintf("revision %d, %s", r.Revision, count(int(r.Keys), "key"))
	if r.Replaced != 0 {
		text += fmt.Sprintf(", in place of revision %d", r.Replaced)
	}
	return text
}

func (t *tool) etcdAlarms() error {
	return t.call(func(ctx context.Context, c *client.Client) error {
		answer, err := c.Etcd.Status(ctx, &api.EtcdStatusRequest{})
		if err != nil {
			return err
		}
		if answer.Problem != "" {
			return &exitError{code: exitFailure, err: errors.New(answer.Problem), hint: "`orlopctl services` and `orlopctl logs orchestrator-api` say more"}
		}
		return t.printAlarms(answer.Alarms, "")
	})
}

func (t *tool) printAlarms(alarms []string, prefix string) error {
	if !t.human() {
		return t.printPlain(struct {
			Alarms []string `json:"alarms"`
		}{append([]string{}, alarms...)})
	}
	for _, a := range alarms {
		t.println(prefix + a)
	}
	if len(alarms) == 0 {
		t.println("no alarm is raised")
	}
	return nil
}

func (t *tool) etcdSnapshotCommand() *cobra.Command {
	var to []string
	var out string
	var force bool
	c := &cobra.Command{
		Use:   "snapshot --out FILE [--to RECIPIENT...]",
		Short: "Take a backup of the cluster's data",
		Long: "Take a backup of all that Kubernetes has stored, as it is at this moment, in etcd's own form. The machine checks it, and the file is\n" +
			"there when all of it has come. It needs the role etcd-backup, or admin.\n\n" +
			"Keep it like an admin's key: who has it reads all but the Secrets, which are encrypted with the cluster's key. With --to the file is\n" +
			"encrypted (age-encryption.org) before it touches the disk; RECIPIENT is age1…, an SSH public key, or a file with such. `age -d -i KEY\n" +
			"FILE` gives the snapshot back. Keep the configuration, or the file of `orlopctl gen secrets`, as well: without the cluster's key in it\n" +
			"nobody reads the Secrets again.",
		Example: "  orlopctl etcd snapshot --out cluster.db.age --to age1qz0…",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			readers, err := recipients(to)
			if err != nil {
				return err
			}
			if _, err := os.Lstat(out); err == nil && !force {
				return usagef("%s: cannot write: it exists; --force replaces it", out)
			}
			return t.callFor(etcdTimeout, func(ctx context.Context, c *client.Client) error { return t.etcdSnapshot(ctx, c, out, readers) })
		},
	}
	f := c.Flags()
	f.StringVar(&out, "out", "", "file to write")
	f.StringArrayVar(&to, "to", nil, "encrypt it for this reader; can be given more than once")
	f.BoolVar(&force, "force", false, "replace an existing file")
	must(c.MarkFlagRequired("out"))
	return c
}

// takenSnapshot is what a snapshot's command prints for programs.
type takenSnapshot struct {
	File     string `json:"file"`
	Revision int64  `json:"revision"`
	Keys     int64  `json:"keys"`
	Size     int64  `json:"size"`   // bytes of the snapshot
	SHA256   string `json:"sha256"` // of the snapshot, before it is encrypted
	Version  string `json:"version"`
}

// etcdSnapshot writes what a machine sends to a file, encrypted if there are readers.
func (t *tool) etcdSnapshot(ctx context.Context, c *client.Client, out string, readers []agecrypt.Recipient) error {
	stream, err := c.Etcd.Snapshot(ctx, &api.EtcdSnapshotRequest{})
	if err != nil {
		return err
	}
	taken := takenSnapshot{File: out}
	err = writeWhole(out, func(file io.Writer) error {
		encrypted, err := encrypt(file, readers)
		if err != nil {
			return err
		}
		sum, came, announced := sha256.New(), int64(0), ""
		progress := func(int64) {}
		err = each(stream.Recv, func(r *api.EtcdSnapshotResponse) error {
			if r.About != nil {
				taken.Revision, taken.Keys, taken.Size, taken.Version = r.About.Revision, r.About.Keys, r.About.Size, r.About.Version
				progress = t.progress("received", taken.Size)
			}
			announced = r.Sha256
			sum.Write(r.Chunk)
			came += int64(len(r.Chunk))
			progress(came)
			if _, err := encrypted.Write(r.Chunk); err != nil {
				return fmt.Errorf("%s: cannot write: %w", out, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
		taken.SHA256 = hex.EncodeToString(sum.Sum(nil))
		if announced != taken.SHA256 || came != taken.Size {
			return errors.New("etcd: the snapshot has not come whole, and no file was written; try again")
		}
		if err := encrypted.Close(); err != nil {
			return fmt.Errorf("%s: cannot write: %w", out, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !t.human() {
		return t.printPlain(taken)
	}
	t.printf("wrote %s: revision %d, %s, %s, SHA-256 %s\n", out, taken.Revision, count(int(taken.Keys), "key"), size(taken.Size), taken.SHA256)
	return nil
}

func (t *tool) etcdRestoreCommand() *cobra.Command {
	var undo, yes bool
	var kept string
	c := &cobra.Command{
		Use:   "restore FILE | --from-machine NAME | --undo",
		Short: "Put a backup in the place of the cluster's data",
		Long: "Put a backup of `orlopctl etcd snapshot`, or one of `orlopctl etcd snapshots`, in the place of the cluster's data, and wait\n" +
			"until etcd serves it. Everything that was written since is gone; it is kept on the machine until the next time, and --undo puts it back. The API server is away for some seconds. Pods\n" +
			"go on; those that the backup knows nothing of end, and those that it has and that are gone are started.\n\n" +
			"It works when etcd or the API server does not run, and on a new machine with the configuration of the old one. The machine checks the\n" +
			"backup before it changes anything. The machine's name must be typed first, unless --yes is given.",
		Example: "  orlopctl etcd restore cluster.db\n  orlopctl etcd restore --from-machine 20261122T201140Z-1234-3.6.0.db\n  orlopctl etcd restore --undo",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if undo && kept != "" || (undo || kept != "") == (len(args) == 1) {
				return usagef("etcd: cannot tell what to restore: expected a file, or --from-machine, or --undo")
			}
			var file *os.File
			first := &api.EtcdRestoreRequest{Undo: undo, Kept: kept}
			if len(args) == 1 {
				var err error
				if file, err = openSnapshot(args[0], first); err != nil {
					return err
				}
				defer func() { _ = file.Close() }() // it was only read
			}
			return t.callFor(etcdTimeout, func(ctx context.Context, c *client.Client) error {
				if !yes {
					if err := t.confirm(ctx, c, "replace the data of its cluster"); err != nil {
						return err
					}
				}
				return t.etcdRestore(ctx, c, first, file)
			})
		},
	}
	c.Flags().StringVar(&kept, "from-machine", "", "the snapshot of this name that the machine has kept (orlopctl etcd snapshots)")
	c.Flags().BoolVar(&undo, "undo", false, "put back what the last restore has replaced")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

// openSnapshot opens a snapshot, and notes what is to be said of it.
func openSnapshot(name string, about *api.EtcdRestoreRequest) (*os.File, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, usagef("etcd: cannot read: %w", err)
	}
	const header = "age-encryption.org/"
	sum, begins := sha256.New(), make([]byte, len(header))
	n, err := io.ReadFull(file, begins)
	if bytes.Equal(begins[:n], []byte(header)) {
		_ = file.Close() // it was only read
		return nil, &exitError{code: exitUsage, err: fmt.Errorf("%s: cannot restore: it is encrypted", name), hint: "decrypt it first: `age -d -i KEY " + name + " >cluster.db`"}
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err == nil {
		about.Size, err = io.Copy(sum, file)
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = file.Close() // it was only read
		return nil, usagef("%s: cannot read the snapshot: %w", name, err)
	}
	about.Sha256 = hex.EncodeToString(sum.Sum(nil))
	return file, nil
}

// etcdRestore sends a snapshot, unless file is nil: the machine has what is asked for, and waits for what becomes of it.
func (t *tool) etcdRestore(ctx context.Context, c *client.Client, first *api.EtcdRestoreRequest, file *os.File) error {
	stream, err := c.Etcd.Restore(ctx)
	if err != nil {
		return err
	}
	err = stream.Send(first)
	if err == nil && file != nil {
		err = send(file, t.progress("sent", first.Size), func(chunk []byte) error { return stream.Send(&api.EtcdRestoreRequest{Chunk: chunk}) })
	}
	if err != nil && !errors.Is(err, io.EOF) { // the reason comes with the answer
		return err
	}
	answer, err := stream.CloseAndRecv()
	if err != nil {
		return err
	}
	if t.human() {
		t.println("restored: " + restoredText(answer.Restored))
		t.println("`orlopctl etcd restore --undo` takes it back; `orlopctl health` waits for the cluster")
		return nil
	}
	return t.print(answer, nil)
}
