package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/slot"
)

// upgradeTimeout bounds the upload, the write, the reboot and the upgrade probes. A new version has
// five minutes per try to become healthy.
const upgradeTimeout = 30 * time.Minute

func upgradeCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var file, peer string
	var from registryFlags
	var noWait, withoutSavepoint, force bool
	c := &cobra.Command{
		Use:         "upgrade -f BUNDLE | --from-registry REFERENCE | --from-peer ADDRESS",
		Annotations: calls(api.Upgrade_Upload_FullMethodName),
		Short:       "Replace the machine's system by another version",
		Long: "Replace the machine's system by another version, and wait for the outcome. The machine writes the new version to\n" +
			"the unused slot and reboots into it. If the upgrade probes fail, the machine rolls back automatically to the\n" +
			"previous version, with the configuration of that version. The exit status is 0 if the new version is committed, and 1 if the\n" +
			"machine has rolled back.\n\n" +
			"As soon as the machine has the bundle, or has started to fetch it, the upgrade continues without this command:\n" +
			"`orlopctl upgrade status --wait` shows the progress. If the upload breaks off, the machine retains the first part,\n" +
			"and the same command uploads the rest.\n\n" +
			"The machine asks the cluster first. It rejects the upgrade, with the reason, in two cases: if the other control-plane\n" +
			"machines need it or another of them is away, and if Kubernetes would not support the versions of kubelets and\n" +
			"API servers after the upgrade. Upgrade the control plane first, machine by machine.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var begun *api.UpgradeStarted
			var err error
			sources := slices.DeleteFunc([]string{file, from.reference, peer}, func(s string) bool { return s == "" })
			switch {
			case len(sources) != 1:
				return exit.Usagef("upgrade: expected -f with the upgrade bundle, or --from-registry, or --from-peer")
			case file != "":
				begun, err = sendBundle(ios, conn, file, &api.UploadBundleRequest{WithoutSavepoint: withoutSavepoint, Force: force})
			case peer != "":
				begun, err = fetchBundle(conn, &api.FetchBundleRequest{Peer: peer, WithoutSavepoint: withoutSavepoint, Force: force})
			default:
				request, wrong := from.request()
				if wrong != nil {
					return wrong
				}
				request.WithoutSavepoint, request.Force = withoutSavepoint, force
				begun, err = fetchBundle(conn, request)
			}
			if err != nil {
				return err
			}
			if ios.Human() {
				ios.Println(fmt.Sprintf("the upgrade from version %s to %s has started", begun.From, begun.To))
			}
			if noWait {
				return nil
			}
			return awaitUpgrade(ios, conn, begun.To)
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "the upgrade bundle")
	c.Flags().StringVar(&from.reference, "from-registry", "", "let the machine fetch the bundle: registry/name:tag of an OCI artifact with the bundle as its layer of type\n"+bundle.TypeArchive)
	c.Flags().StringVar(&peer, "from-peer", "", "let the machine fetch the running version from a peer at this address")
	c.Flags().StringVar(&from.ca, "registry-ca", "", "file with the CA of the registry's certificate")
	c.Flags().BoolVar(&from.plainHTTP, "plain-http", false, "connect to the registry with HTTP, without TLS")
	c.Flags().StringVar(&from.username, "registry-user", "", "user name for the registry (default: none)")
	c.Flags().StringVar(&from.password, "registry-password-file", "", "file with the password of --registry-user")
	c.Flags().BoolVar(&withoutSavepoint, "without-savepoint", false, "take no savepoint; use it if etcd does not run, because the machine cannot take a savepoint then")
	forceFlag(c, &force)
	c.Flags().BoolVar(&noWait, "no-wait", false, "do not wait for the outcome; orlopctl upgrade status --wait waits for it")
	c.AddCommand(upgradeStatusCommand(ios, conn), finalizeCommand(ios, conn))
	return c
}

// registryFlags are the flags for a bundle in a registry.
type registryFlags struct {
	reference, ca      string
	plainHTTP          bool
	username, password string // password is the path of the file with the password
}

func upgradeStatusCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var wait bool
	c := &cobra.Command{
		Use: "status", Short: "Show the last upgrade, its progress, and the reason for a rollback", Args: cobra.NoArgs,
		Annotations: calls(api.Upgrade_Status_FullMethodName),
		RunE: func(*cobra.Command, []string) error {
			if wait {
				return awaitUpgrade(ios, conn, "")
			}
			return conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Upgrade.Status(ctx, &api.UpgradeStatusRequest{})
				if err != nil {
					return err
				}
				return ios.Print(answer, func(w *tabwriter.Writer) { upgradeTable(w, answer) })
			})
		},
	}
	c.Flags().BoolVarP(&wait, "wait", "w", false, "show the progress and wait for the outcome, also while the machine reboots")
	return c
}

// finalizeTime bounds the time in which the machines agree on a new level of the cluster.
const finalizeTime = 5 * time.Minute

func finalizeCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "finalize", Short: "Raise the level of the cluster to the version of its control plane", Args: cobra.NoArgs,
		Annotations: calls(api.Upgrade_Finalize_FullMethodName),
		Long: "Raise the level of the cluster to the minor version of Kubernetes that all control-plane machines run. With the\n" +
			"former level, they emulate the previous minor version, and `orlopctl rollback` can return each of them to the previous\n" +
			"version. With the new level, a rollback is impossible. `orlopctl services` shows the level, and the machine that\n" +
			"blocks this command. The control-plane machines restart their API servers, one after the other. You must type the\n" +
			"machine's name first, unless --yes is given.",
		RunE: func(*cobra.Command, []string) error {
			return conn.CallFor(typingTime+finalizeTime, func(ctx context.Context, c *client.Client) error {
				if !yes {
					if err := confirm(ctx, ios, c, "raise the level of the cluster, which ends the way back"); err != nil {
						return err
					}
				}
				answer, err := c.Upgrade.Finalize(ctx, &api.FinalizeRequest{})
				if err != nil {
					return err
				}
				return ios.Print(answer, func(w *tabwriter.Writer) {
					iostreams.Row(w, "LEVEL BEFORE", answer.From)
					iostreams.Row(w, "LEVEL", answer.To)
				})
			})
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not prompt for confirmation")
	return c
}

func rollbackCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var yes, force bool
	c := &cobra.Command{
		Use:         "rollback",
		Annotations: calls(api.Upgrade_Rollback_FullMethodName),
		Short:       "Roll back to the previous version",
		Long: "Reboot into the previous version, with the configuration that was active when that version was committed, and wait\n" +
			"for the outcome. You must type the machine's name first, unless --yes is given. The machine asks the cluster first,\n" +
			"as before an upgrade. If the previous version has another minor version of Kubernetes, roll back the workers first.\n" +
			"The machine refuses if its earlier configuration trusts a CA (of operators, clients, machines) that was removed since;\n" +
			"--force permits this, too.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var to string
			err := conn.CallFor(typingTime+askTime+drainTime, func(ctx context.Context, c *client.Client) error {
				if !yes {
					if err := confirm(ctx, ios, c, "go back to the version before"); err != nil {
						return err
					}
				}
				return withDrain(ctx, ios, c, func(ctx context.Context) error {
					answer, err := c.Upgrade.Rollback(ctx, &api.RollbackRequest{Force: force})
					to = answer.GetTo()
					return err
				})
			})
			if err != nil {
				return err
			}
			return awaitUpgrade(ios, conn, to)
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not prompt for confirmation")
	forceFlag(c, &force)
	return c
}

// request reads the files that the flags name, and returns the request for the machine.
func (f registryFlags) request() (r *api.FetchBundleRequest, err error) {
	r = &api.FetchBundleRequest{Reference: f.reference, PlainHttp: f.plainHTTP, Username: f.username}
	if f.ca != "" {
		if r.Ca, err = os.ReadFile(f.ca); err != nil {
			return nil, exit.Usagef("upgrade: cannot read the registry's CA: %w", err)
		}
	}
	if f.password != "" {
		text, err := os.ReadFile(f.password)
		if err != nil {
			return nil, exit.Usagef("upgrade: cannot read the password: %w", err)
		}
		r.Password = strings.TrimSpace(string(text))
	}
	return r, nil
}

// fetchBundle makes the machine fetch a bundle. It returns as soon as the machine has started the
// fetch.
func fetchBundle(conn *connect.Connector, r *api.FetchBundleRequest) (begun *api.UpgradeStarted, err error) {
	err = conn.CallFor(upgradeTimeout, func(ctx context.Context, c *client.Client) (err error) {
		begun, err = c.Upgrade.Fetch(ctx, r)
		return err
	})
	return begun, err
}

// sendBundle uploads a bundle, and resumes the upload after a lost connection. It returns when the
// machine has the whole bundle. first has the options of the upgrade.
func sendBundle(ios *iostreams.Streams, conn *connect.Connector, name string, first *api.UploadBundleRequest) (*api.UpgradeStarted, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, exit.Usagef("upgrade: cannot read: %w", err)
	}
	defer func() { _ = file.Close() }() // the file was only read
	hash := sha256.New()
	size, err := io.Copy(hash, file)
	if err != nil {
		return nil, exit.Usagef("upgrade: cannot read the bundle: %w", err)
	}
	u := upload{ios: ios, conn: conn, file: file, offer: &api.BeginUploadRequest{Sha256: hex.EncodeToString(hash.Sum(nil)), Size: size}, first: first}
	return u.send()
}

// upload is the upload of a bundle to a machine.
type upload struct {
	ios   *iostreams.Streams
	conn  *connect.Connector
	file  io.ReadSeeker
	offer *api.BeginUploadRequest
	first *api.UploadBundleRequest // options of the upgrade
}

// send repeats the upload until the machine has the whole bundle. It returns any error that occurs
// before the machine has accepted the upload. After that, it retries when a connection is lost or
// the machine restarts.
func (u upload) send() (begun *api.UpgradeStarted, err error) {
	endpoint, err := u.conn.Machine()
	if err != nil {
		return nil, err
	}
	ctx, stop := connect.Interruptible()
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, u.conn.Timeout(upgradeTimeout))
	defer cancel()
	told := ""
	for sending := false; ; {
		err := connect.Attempt(ctx, endpoint, func(_ context.Context, c *client.Client) (err error) {
			begun, err = u.try(ctx, c, &sending)
			return err
		})
		if err == nil || !sending || !exit.IsTemporary(err) && !interrupted(err) || backoff.Sleep(ctx, connect.DialInterval) != nil {
			return begun, err
		}
		if line := "it broke off: " + exit.Message(err); u.ios.Human() && line != told {
			u.ios.Errorln(line)
			told = line
		}
	}
}

// interrupted reports whether the machine has interrupted the upload, and expects the client to
// resume it.
func interrupted(err error) bool {
	s, ok := exit.StatusOf(err)
	return ok && s.Code() == codes.Aborted
}

// try uploads the part that the machine does not have yet. It sets *sending after the machine has
// accepted the upload.
func (u upload) try(ctx context.Context, c *client.Client, sending *bool) (*api.UpgradeStarted, error) {
	answer, err := c.Upgrade.BeginUpload(ctx, u.offer)
	if err != nil {
		return nil, err
	}
	*sending = true
	if _, err := u.file.Seek(answer.Received, io.SeekStart); err != nil {
		return nil, fmt.Errorf("upgrade: cannot read the bundle: %w", err)
	}
	if u.ios.Human() && answer.Received > 0 {
		u.ios.Errorln(fmt.Sprintf("the machine has %d of %d bytes; sending %d", answer.Received, u.offer.Size, u.offer.Size-answer.Received))
	}
	stream, err := c.Upgrade.Upload(ctx)
	if err != nil {
		return nil, err
	}
	progress := newProgress(u.ios, "sent", u.offer.Size)
	first := &api.UploadBundleRequest{Sha256: u.offer.Sha256, Offset: answer.Received, WithoutSavepoint: u.first.WithoutSavepoint, Force: u.first.Force}
	if stream.Send(first) == nil {
		err := send(u.file, func(sent int64) { progress(answer.Received + sent) }, func(chunk []byte) error {
			return stream.Send(&api.UploadBundleRequest{Chunk: chunk})
		})
		if err != nil {
			return nil, err
		}
	}
	return stream.CloseAndRecv() // if the machine has rejected the bundle, this returns its reason
}

// awaitUpgrade waits for the end of an upgrade, across reboots, and shows the progress. It returns
// nil if the wanted version runs at the end. If wanted is empty, it returns nil if the new version
// is committed.
func awaitUpgrade(ios *iostreams.Streams, conn *connect.Connector, wanted string) error {
	endpoint, err := conn.Machine()
	if err != nil {
		return err
	}
	ctx, stop := connect.Interruptible()
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, conn.Timeout(upgradeTimeout+drainTime))
	defer cancel()
	var last *api.UpgradeStatus
	show := newStagePrinter(ios)
	for {
		err := followUpgrade(ctx, ios, endpoint, func(now *api.UpgradeStatus) bool {
			last = now
			show(now)
			return slot.Phase(now.Phase).Done() && now.Operation == ""
		})
		if err == nil {
			return printOutcome(ios, last, wanted)
		}
		if ctx.Err() == nil && !exit.IsTemporary(err) {
			return err
		}
		if backoff.Sleep(ctx, connect.DialInterval) != nil {
			return &exit.Error{Code: exit.Unhealthy, Err: fmt.Errorf("upgrade: not complete in time; its phase is %q", last.GetPhase()), Hint: "`orlopctl upgrade status --wait` continues to wait"}
		}
	}
}

// followUpgrade connects to the machine and passes each status of the upgrade to the function
// enough, until enough returns true. It returns an error if the connection is lost.
func followUpgrade(ctx context.Context, ios *iostreams.Streams, endpoint client.Endpoint, enough func(*api.UpgradeStatus) bool) error {
	return connect.Attempt(ctx, endpoint, func(_ context.Context, c *client.Client) error {
		stream, err := c.Upgrade.Watch(ctx, &api.WatchUpgradeRequest{})
		if err != nil {
			return err
		}
		defer startShowingDrain(ctx, ios, c)()
		for {
			now, err := stream.Recv()
			if err != nil {
				return err
			}
			if enough(now) {
				return nil
			}
		}
	})
}

// newStagePrinter returns a function that prints each stage of an upgrade. On a terminal, the
// function also shows the progress.
func newStagePrinter(ios *iostreams.Streams) func(*api.UpgradeStatus) {
	if !ios.Human() {
		return func(*api.UpgradeStatus) {}
	}
	_, terminal := ios.Terminal()
	told := ""
	return func(s *api.UpgradeStatus) {
		if terminal {
			_, _ = fmt.Fprint(ios.Err, "\r\x1b[K")
		}
		line := strings.TrimSuffix(s.Phase+": "+cmp.Or(s.Operation, s.WaitingFor), ": ")
		if line != told {
			ios.Errorln(line)
			told = line
		}
		if terminal && s.Total > 0 {
			_, _ = fmt.Fprintf(ios.Err, "%s of %s", format.Size(s.Done), format.Size(s.Total))
		}
	}
}

func printOutcome(ios *iostreams.Streams, s *api.UpgradeStatus, wanted string) error {
	if err := ios.Print(s, func(w *tabwriter.Writer) { upgradeTable(w, s) }); err != nil {
		return err
	}
	if s.Running == wanted || wanted == "" && slot.Phase(s.Phase) == slot.Committed {
		return nil
	}
	return fmt.Errorf("upgrade to %s: %s: %s", s.To, s.Phase, s.Reason)
}

func upgradeTable(w *tabwriter.Writer, s *api.UpgradeStatus) {
	iostreams.Row(w, "RUNNING", s.Running)
	if s.Phase == "" {
		iostreams.Row(w, "UPGRADE", "none yet")
		return
	}
	iostreams.Row(w, "FROM", s.From)
	iostreams.Row(w, "TO", s.To)
	iostreams.Row(w, "PHASE", s.Phase)
	if s.Operation != "" {
		text := s.Operation
		if s.Total > 0 {
			text += fmt.Sprintf(" (%s of %s)", format.Size(s.Done), format.Size(s.Total))
		}
		iostreams.Row(w, "NOW", text)
	}
	if s.WaitingFor != "" {
		iostreams.Row(w, "WAITS FOR", s.WaitingFor)
	}
	if s.Tries > 0 {
		iostreams.Row(w, "TRIES", fmt.Sprint(s.Tries))
	}
	if s.Reason != "" {
		iostreams.Row(w, "REASON", s.Reason)
	}
	if s.DataRestoredFrom != nil {
		iostreams.Row(w, "DROPPED", fmt.Sprintf("%d revisions of the cluster's data, which are restored as of %s", s.LostRevisions, s.DataRestoredFrom.AsTime().Format(time.RFC3339)))
	}
	if s.Started != nil {
		iostreams.Row(w, "BEGAN", s.Started.AsTime().Format(time.RFC3339))
	}
	if s.Ended != nil {
		iostreams.Row(w, "ENDED", s.Ended.AsTime().Format(time.RFC3339))
	}
}
