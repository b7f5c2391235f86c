package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/trial"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
)

func validateCommand(ios *iostreams.Streams) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "validate -f FILE", Short: "Check a configuration without a machine", Args: fileOrFlag,
		Long: "Check a configuration without a machine. With -o json or yaml, the command prints one document with all problems,\n" +
			"each with its line and field. The exit status is 2 for an invalid configuration, in every output format.",
		RunE: func(*cobra.Command, []string) error {
			text, err := ios.ReadFile(file)
			if err != nil {
				return err
			}
			parsed, problems := config.Parse(file, text)
			if !ios.Human() {
				if err := ios.PrintPlain(judge(file, parsed, problems, time.Now())); err != nil {
					return err
				}
				return problems.Err()
			}
			if err := problems.Err(); err != nil {
				return err
			}
			for _, p := range parsed.CheckTime(time.Now()) {
				ios.Errorln("warning: " + p.String())
			}
			ios.Println(describe(file, parsed))
			return nil
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "the configuration; - for the standard input")
	must(c.MarkFlagRequired("file"))
	return c
}

func describe(file string, c *config.Config) string {
	text := fmt.Sprintf("%s: valid: machine %s, role %s", file, c.Machine.Metadata.Name, c.Machine.Spec.Role)
	if c.Cluster != nil {
		text += fmt.Sprintf(", cluster %s at %s", c.Cluster.Metadata.Name, c.Cluster.Spec.Endpoint)
	}
	return text
}

// validationResult is the result of `validate` in JSON and YAML.
type validationResult struct {
	File     string          `json:"file"`
	Valid    bool            `json:"valid"`
	Machine  string          `json:"machine,omitempty"`
	Role     string          `json:"role,omitempty"`
	Cluster  string          `json:"cluster,omitempty"`
	Endpoint string          `json:"endpoint,omitempty"`
	Problems config.Problems `json:"problems"`
	Warnings config.Problems `json:"warnings"` // a file with warnings is valid
}

func judge(file string, c *config.Config, problems config.Problems, now time.Time) validationResult {
	// an empty list is [] in JSON, not null
	list := func(all config.Problems) config.Problems { return append(config.Problems{}, all...) }
	j := validationResult{File: file, Valid: len(problems) == 0, Problems: list(problems), Warnings: list(nil)}
	if !j.Valid {
		return j
	}
	j.Machine, j.Role, j.Warnings = c.Machine.Metadata.Name, string(c.Machine.Spec.Role), list(c.CheckTime(now))
	if c.Cluster != nil {
		j.Cluster, j.Endpoint = c.Cluster.Metadata.Name, c.Cluster.Spec.Endpoint.String()
	}
	return j
}

func applyCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var file string
	var how applying
	c := &cobra.Command{
		Use:         "apply-config -f FILE",
		Annotations: calls(api.Config_Apply_FullMethodName),
		Short:       "Apply a configuration to the machine, whole or not at all",
		Long: "Apply a configuration to the machine, whole or not at all. A machine that runs from memory installs itself to\n" +
			"the disk that Machine.spec.install selects. The command then shows the progress of the installation until the\n" +
			"machine reboots from that disk.",
		Example: "  orlopctl apply-config -f cp1.yaml --dry-run\n" +
			"  orlopctl apply-config -f cp1.yaml -e 10.0.0.11 --cert admin.crt --key admin.key --fingerprint sha256:…",
		Args: fileOrFlag,
		RunE: func(*cobra.Command, []string) error {
			text, err := ios.ReadFile(file)
			if err != nil {
				return err
			}
			// Report the problems of the file itself without a connection to the machine.
			if _, problems := config.Parse(file, text); problems.Err() != nil {
				return problems
			}
			return apply(ios, conn, &api.ApplyRequest{Documents: text, Filename: file}, how)
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "the configuration; - for the standard input")
	how.flags(c.Flags())
	c.Flags().BoolVar(&how.noWait, "no-wait", false, "do not wait for the end of an installation (orlopctl watch install shows its progress)")
	must(c.MarkFlagRequired("file"))
	return c
}

// applying holds the flags of a command that applies a configuration.
type applying struct {
	mode           string
	tryFor         time.Duration
	dryRun, noWait bool
	force, noTrial bool
}

func (a *applying) flags(f *pflag.FlagSet) {
	f.BoolVar(&a.dryRun, "dry-run", false, "change nothing, only list the operations")
	f.StringVar(&a.mode, "mode", "auto", "auto: apply now; no-reboot: apply now, but reject a configuration that needs a reboot; "+
		"try: apply now, and revert to the previous configuration unless orlopctl confirm-config confirms the new one; "+
		"staged: apply at the next boot, or at the first boot of the next upgrade; reboot: reboot now and apply at that boot. "+
		"In the modes auto, no-reboot and reboot, a change that can cut you off goes on trial, and this command confirms it; the mode staged rejects it")
	f.DurationVar(&a.tryFor, "try-for", 0, "how long the configuration is on trial, 10s to 1h (default: 2m in the mode try; 1m for a change that can cut you off; 5m after the boot in the mode reboot)")
	flags.Positive(f, "try-for", &a.tryFor)
	f.BoolVar(&a.force, "force", false, "apply the configuration even if it names links, kernel parameters or kernel modules that the machine does not have")
	f.BoolVar(&a.noTrial, "no-trial", false, "apply a change that can cut you off without a trial: the machine does not revert it")
}

// apply sends a configuration, or a patch for the active configuration, and prints the result. It
// waits for the end of an installation, unless --no-wait is set.
func apply(ios *iostreams.Streams, conn *connect.Connector, r *api.ApplyRequest, a applying) error {
	var known bool
	if r.Mode, known = applyModes[a.mode]; !known {
		return exit.Usagef("--mode %q: cannot apply: expected auto, no-reboot, try, staged or reboot", a.mode)
	}
	r.TrialDuration = connect.DurationOf(a.tryFor)
	if a.dryRun {
		r.TrialDuration = nil
		r.Mode = api.ApplyRequest_MODE_DRY_RUN
	}
	r.Force, r.NoTrial = a.force, a.noTrial
	if trial.IsAutomatic(r.Mode) {
		r.TrialName = trial.NewName()
	}
	answer, err := sendApply(ios, conn, r)
	if err != nil {
		return err
	}
	how := r.Mode
	if trial.IsAutomatic(r.Mode) && trial.Needed(answer) {
		if err := trial.Confirm(ios, conn, r.TrialName, answer); err != nil {
			return err
		}
		answer.CutOffWarnings = nil // the confirmed trial has shown that the operator is not cut off
		how, answer.Reboot = api.ApplyRequest_MODE_AUTO, false
	}
	if ios.Human() {
		printApplied(ios, answer, how)
	} else if err := ios.Print(answer, nil); err != nil {
		return err
	}
	if n := len(answer.Failures); n > 0 {
		return &exit.Error{Code: exit.Failure, Err: fmt.Errorf("the configuration is active, but %s failed; the machine retries", format.Count(n, "operation")), Hint: "`orlopctl get drift` lists the remaining operations"}
	}
	if a.dryRun || a.noWait || answer.Install == "" {
		return nil
	}
	return awaitInstall(ios, conn)
}

// sendApply calls Apply and returns the answer of the machine. If the connection is lost in a mode
// in which orlopctl confirms trials, sendApply tries to confirm the trial on a new connection.
func sendApply(ios *iostreams.Streams, conn *connect.Connector, r *api.ApplyRequest) (answer *api.ApplyResponse, err error) {
	err = conn.CallFor(connect.ApplyTimeout-connect.DefaultTimeout, func(ctx context.Context, c *client.Client) error {
		answer, err = c.Config.Apply(ctx, r)
		return err
	})
	if s, ok := exit.StatusOf(err); ok && s.Code() == codes.Unavailable && trial.IsAutomatic(r.Mode) && !r.NoTrial {
		return trial.ConfirmLost(ios, conn, err, r)
	}
	hint := "the machine may continue: `orlopctl events` and `orlopctl show-config` show the active configuration"
	if r.Mode == api.ApplyRequest_MODE_TRY {
		hint = "if it is on trial, the machine reverts it at the end of the trial; `orlopctl confirm-config` confirms it before"
	}
	return answer, mayContinue(err, hint)
}

func patchCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var file, text string
	var how applying
	c := &cobra.Command{
		Use:         "patch-config -p PATCH | -f FILE",
		Annotations: fanout(api.Fanout_FANOUT_SEQUENTIAL),
		Short:       "Change single fields of the machine's configuration",
		Long: "Change single fields of the machine's configuration. The patch holds the kind of the document and the fields\n" +
			"that change: mappings are merged, lists are replaced as a whole, null removes (RFC 7396). All other fields\n" +
			"stay, including comments and secrets. The machine applies the result whole or not at all.",
		Example: "  orlopctl patch-config -p '{kind: Machine, spec: {sysctls: {vm.swappiness: \"1\"}}}' --dry-run\n" +
			"  orlopctl patch-config -f patch.yaml",
		Args: fileOrFlag,
		RunE: func(*cobra.Command, []string) error {
			if (text == "") == (file == "") {
				return exit.Usagef("patch-config: cannot change the configuration: expected --patch or --file")
			}
			patch := []byte(text)
			if file != "" {
				var err error
				if patch, err = ios.ReadFile(file); err != nil {
					return err
				}
			}
			return apply(ios, conn, &api.ApplyRequest{Documents: patch, Filename: file, Patch: true}, how)
		},
	}
	c.Flags().StringVarP(&text, "patch", "p", "", "the patch itself, in YAML")
	c.Flags().StringVarP(&file, "file", "f", "", "file with the patch; - for the standard input")
	how.flags(c.Flags())
	return c
}

func editCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var how applying
	c := &cobra.Command{
		Use:   "edit-config",
		Short: "Change the machine's configuration in an editor ($VISUAL or $EDITOR)",
		Long: "Change the machine's configuration in an editor ($VISUAL or $EDITOR). Secrets are not shown; they stay\n" +
			"unchanged unless their placeholders are edited. Only the differences are sent. If the machine rejects the\n" +
			"result, the edited file is not deleted.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var before []byte
			err := conn.Call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Config.Get(ctx, &api.GetConfigRequest{})
				if err == nil {
					before = answer.Documents
				}
				return err
			})
			if err != nil {
				return err
			}
			file, after, err := edited(before)
			if err != nil {
				return err
			}
			patch, err := config.Diff(before, after)
			if err != nil {
				return fmt.Errorf("edited configuration: %w; it is in %s", err, file)
			}
			if len(patch) > 0 {
				if err := apply(ios, conn, &api.ApplyRequest{Documents: patch, Filename: file, Patch: true}, how); err != nil {
					ios.Errorln("the edited configuration is in " + file)
					return err
				}
			} else {
				ios.PrintProgress("nothing was changed")
			}
			if how.dryRun && len(patch) > 0 {
				ios.PrintProgress("the edited configuration is in " + file)
				return nil
			}
			return os.Remove(file)
		},
	}
	how.flags(c.Flags())
	return c
}

// edited opens a text in the operator's editor. It returns the edited text, and the name of the
// temporary file with it, which the caller deletes. The returned error is nil only if the editor
// ended with status 0.
func edited(text []byte) (name string, after []byte, err error) {
	f, err := os.CreateTemp("", "orlop-*.yaml") // mode 0600
	if err != nil {
		return "", nil, fmt.Errorf("file to edit: cannot make: %w", err)
	}
	if _, err := f.Write(text); err != nil {
		return "", nil, errors.Join(fmt.Errorf("file to edit: cannot write: %w", err), f.Close())
	}
	if err := f.Close(); err != nil {
		return "", nil, fmt.Errorf("file to edit: cannot write: %w", err)
	}
	editor := cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"), "vi")
	// EDITOR can be a command line with arguments ("code --wait"), as in git.
	c := exec.Command("sh", "-c", editor+` "$1"`, "sh", f.Name())
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	// The editor handles Ctrl-C and Ctrl-\. The terminal also sends these signals to this program,
	// so this program catches them. It does not ignore them, because the editor would inherit this.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGQUIT)
	err = c.Run()
	signal.Stop(caught)
	if err != nil {
		if now, reading := os.ReadFile(f.Name()); reading == nil && !bytes.Equal(now, text) {
			return "", nil, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("editor %s: %w; nothing was changed on the machine; the edited file is %s", editor, err, f.Name()), Hint: "set EDITOR to another editor"}
		}
		_ = os.Remove(f.Name()) // the file contains no edit
		return "", nil, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("editor %s: %w; nothing was changed", editor, err), Hint: "set EDITOR to another editor"}
	}
	after, err = os.ReadFile(f.Name())
	return f.Name(), after, err
}

// applyModes are the values of --mode.
var applyModes = map[string]api.ApplyRequest_Mode{
	"auto": api.ApplyRequest_MODE_AUTO, "no-reboot": api.ApplyRequest_MODE_NO_REBOOT, "try": api.ApplyRequest_MODE_TRY,
	"staged": api.ApplyRequest_MODE_STAGED, "reboot": api.ApplyRequest_MODE_REBOOT,
}

func printApplied(ios *iostreams.Streams, answer *api.ApplyResponse, how api.ApplyRequest_Mode) {
	did, restarted, reboots := "done:", "restarted: ", "the machine reboots now"
	if answer.Install != "" {
		did = "being done:"
	}
	switch how {
	case api.ApplyRequest_MODE_DRY_RUN:
		did, restarted, reboots = "would be done:", "would be restarted: ", "the machine would reboot"
	case api.ApplyRequest_MODE_REBOOT:
		did, restarted = "will be done at the next start:", "will be restarted: "
	case api.ApplyRequest_MODE_STAGED:
		did, restarted, reboots = "will be done at the next start:", "will be restarted: ", ""
	}
	switch {
	case len(answer.Operations) > 0:
		ios.Println(did)
		for _, op := range answer.Operations {
			ios.Println("  " + op)
		}
	case len(answer.Restarts) == 0 && !answer.Reboot:
		ios.Println("nothing to do: the machine has this configuration")
	}
	if len(answer.Restarts) > 0 {
		ios.Println(restarted + strings.Join(answer.Restarts, ", "))
	}
	if answer.Reboot && reboots != "" {
		ios.Println(reboots)
	}
	for _, f := range answer.Failures {
		ios.Errorln("failed: " + format.CleanLines(f))
	}
	for _, w := range slices.Concat(answer.Warnings, answer.CutOffWarnings) {
		ios.Errorln("warning: " + format.CleanLines(w))
	}
	if answer.TrialDeadline != nil {
		ios.Println("on trial until " + answer.TrialDeadline.AsTime().Format(time.RFC3339) + ": then the previous configuration becomes active again, unless `orlopctl confirm-config` confirms this one")
	}
}
