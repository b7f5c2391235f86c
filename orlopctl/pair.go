package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/admission/pairing"
	"github.com/orlop-os/orlop/pkg/client"
)

func pairCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var operator, name, typed string
	var force bool
	c := &cobra.Command{
		Use:   "pair ADDRESS",
		Short: "Claim an unclaimed machine with the pairing code on its console",
		Long: "Claim an unclaimed machine: from then on it accepts only calls of this operator. An unclaimed machine has an\n" +
			"image without an operator CA, and its console shows a pairing code. The command prompts for the code. The machine\n" +
			"and the tool prove to each other that they know the code; an attacker between them cannot learn it or claim the\n" +
			"machine. The command stores the machine as a context.",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if name == "" {
				name = args[0]
			}
			// This check comes before the claim: it protects an existing context, which may hold
			// the only key to another machine.
			known, err := contexts.Load()
			if err != nil {
				return err
			}
			if c, exists := known.Contexts[name]; exists && c.Endpoint != args[0] && !force {
				return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("context %q: cannot store: it already exists for the machine at %s", name, c.Endpoint), Hint: "choose another name with --name; --force replaces it"}
			}
			owner, err := operatorContext(operator)
			if err != nil {
				return err
			}
			ctx, stop := connect.Interruptible()
			defer stop()
			code, err := pairingCode(ctx, ios, typed)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, conn.Timeout(connect.DefaultTimeout))
			defer cancel()
			fingerprint, err := client.Pair(ctx, args[0], []byte(owner.CA), code)
			switch {
			case errors.Is(err, client.ErrClaimed):
				return &exit.Error{Code: exit.Unreachable, Err: err, Hint: "only its operator can release it (`orlopctl reset`)"}
			case errors.As(err, new(pairing.RefusedError)) || errors.Is(err, pairing.ErrWrongMachine):
				return &exit.Error{Code: exit.Unreachable, Err: err, Hint: "compare the code with the present code on the machine's console; it changes with each boot"}
			case errors.Is(err, client.ErrUnreachable):
				return err
			case err != nil:
				return &exit.Error{Code: exit.Unreachable, Err: err, Hint: "if its console shows no code any more, you have claimed it: use `orlopctl config set` with the fingerprint on the console"}
			}
			err = contexts.Change(func(f *contexts.File) error {
				f.Contexts[name] = contexts.Context{Endpoint: args[0], Fingerprint: fingerprint, Cert: owner.Cert, Key: owner.Key, Operator: owner.Operator}
				f.Current = name
				return nil
			})
			if err != nil {
				return err
			}
			ios.Printf("the machine at %s is yours; its key is %s; context %s\n", args[0], fingerprint, name)
			return nil
		},
	}
	c.Flags().StringVar(&operator, "operator", "operator", "directory with the operator's ca.crt, admin.crt and admin.key (orlopctl gen operator)")
	c.Flags().StringVar(&name, "name", "", "name of the context (default: the address)")
	c.Flags().StringVar(&typed, "code", "", "the pairing code (default: prompt for it)")
	c.Flags().BoolVar(&force, "force", false, "replace a context of the same name for another machine")
	return c
}

// operatorContext returns a context with the operator CA, the certificate and the key in an
// operator's directory. It first renews the certificate if that is due.
func operatorContext(dir string) (c contexts.Context, err error) {
	if c.Operator, err = filepath.Abs(dir); err != nil {
		return c, fmt.Errorf("operator: %w", err)
	}
	if err := gen.FreshAdmin(dir); err != nil {
		return c, err
	}
	for _, f := range []struct {
		name string
		to   *string
	}{{gen.CACert, &c.CA}, {gen.AdminName + ".crt", &c.Cert}, {gen.AdminName + ".key", &c.Key}} {
		text, err := os.ReadFile(filepath.Join(dir, f.name))
		if err != nil {
			return c, exit.Usagef("operator: cannot read: %w; make a CA with `orlopctl gen operator`, and name its directory with --operator", err)
		}
		*f.to = string(text)
	}
	return c, nil
}

// pairingCode parses the code in `typed`, or prompts for the code if `typed` is empty.
func pairingCode(ctx context.Context, ios *iostreams.Streams, typed string) (pairing.Code, error) {
	if typed == "" {
		_, _ = fmt.Fprint(ios.Err, "Type the pairing code that the machine's console shows: ")
		var err error
		if typed, err = readLine(ctx, ios.In); err != nil {
			return "", err
		}
	}
	code, err := pairing.ParseCode(typed)
	if err != nil {
		return "", exit.Usagef("%w", err)
	}
	return code, nil
}
