package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
)

// applyTimeout bounds applying: a first configuration formats disks, which takes its time on a slow machine.
const applyTimeout = 5 * time.Minute

func (t *tool) validateCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "validate -f FILE", Short: "Check a configuration without a machine", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			text, err := t.readFile(file)
			if err != nil {
				return err
			}
			parsed, problems := config.Parse(file, text)
			if err := problems.Err(); err != nil {
				return err
			}
			for _, p := range parsed.CheckTime(time.Now()) {
				t.errorln("warning: " + p.String())
			}
			t.println(describe(file, parsed))
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

// readFile reads a file or, for "-", the standard input.
func (t *tool) readFile(name string) ([]byte, error) {
	if name != "-" {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, usagef("file: cannot read: %w", err)
		}
		return text, nil
	}
	text, err := io.ReadAll(io.LimitReader(t.stdin, config.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("standard input: cannot read: %w", err)
	}
	return text, nil
}

func (t *tool) applyCommand() *cobra.Command {
	var file, mode string
	var dryRun, noWait bool
	c := &cobra.Command{
		Use:   "apply-config -f FILE",
		Short: "Apply a configuration to the machine, whole or not at all",
		Long: "Apply a configuration to the machine, whole or not at all. A machine that runs from memory installs itself to the disk that\n" +
			"Machine.spec.install selects; what it does is shown until it reboots into that disk.",
		Example: "  orlopctl apply-config -f cp1.yaml --dry-run\n" +
			"  orlopctl apply-config -f cp1.yaml -e 10.0.0.11 --cert admin.crt --key admin.key --fingerprint sha256:…",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			text, err := t.readFile(file)
			if err != nil {
				return err
			}
			// What is wrong with the file can be said without the machine.
			if _, problems := config.Parse(file, text); problems.Err() != nil {
				return problems
			}
			how, known := applyModes[mode]
			if !known {
				return usagef("apply-config: --mode %q is not known; it is auto or staged", mode)
			}
			if dryRun {
				how = api.ApplyRequest_MODE_DRY_RUN
			}
			if t.flags.timeout == 0 {
				t.flags.timeout = applyTimeout
			}
			var installs bool
			err = t.call(func(ctx context.Context, c *client.Client) error {
				answer, err := c.Config.Apply(ctx, &api.ApplyRequest{Documents: text, Mode: how, Filename: file})
				if err != nil {
					return err
				}
				installs = answer.Install != ""
				if t.human() {
					t.printApplied(answer, how)
					return nil
				}
				return t.print(answer, nil)
			})
			if err != nil || dryRun || noWait || !installs {
				return err
			}
			return t.awaitInstall()
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "the configuration; - for the standard input")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "change nothing, only say what would be done")
	c.Flags().StringVar(&mode, "mode", "auto", "auto: now; staged: from the next start on, or from the first start of the version that the next upgrade brings")
	c.Flags().BoolVar(&noWait, "no-wait", false, "return when an installation has begun; `orlopctl watch install` shows it")
	must(c.MarkFlagRequired("file"))
	return c
}

// applyModes are the values of --mode.
var applyModes = map[string]api.ApplyRequest_Mode{"auto": api.ApplyRequest_MODE_AUTO, "staged": api.ApplyRequest_MODE_STAGED}

func (t *tool) printApplied(answer *api.ApplyResponse, how api.ApplyRequest_Mode) {
	did, restarted, reboots := "done:", "restarted: ", "the machine reboots now"
	if answer.Install != "" {
		did = "being done:"
	}
	switch how {
	case api.ApplyRequest_MODE_DRY_RUN:
		did, restarted, reboots = "would be done:", "would be restarted: ", "the machine would reboot"
	case api.ApplyRequest_MODE_STAGED:
		did, restarted, reboots = "will be done at the next start:", "will be restarted: ", ""
	}
	switch {
	case len(answer.Operations) > 0:
		t.println(did)
		for _, op := range answer.Operations {
			t.println("  " + op)
		}
	case len(answer.Restarts) == 0 && !answer.Reboot:
		t.println("nothing to do: the machine is as the configuration says")
	}
	if len(answer.Restarts) > 0 {
		t.println(restarted + strings.Join(answer.Restarts, ", "))
	}
	if answer.Reboot && reboots != "" {
		t.println(reboots)
	}
}
