package main

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/approval"
	"github.com/orlop-os/orlop/pkg/pki"
)

const (
	// approvalTTL is the default validity of an approval. The second operator may be in another
	// time zone.
	approvalTTL = 8 * time.Hour
	// approvalBackdate is the time by which the validity of an approval begins earlier, because the
	// clocks of this computer and of the machine can differ.
	approvalBackdate = 5 * time.Minute
)

func approvalCommand(ios *iostreams.Streams) *cobra.Command {
	c := &cobra.Command{
		Use: "approval", Short: "Request and sign approvals of calls that two operators must approve",
		Long: "Request and sign approvals. If the configuration of a machine has a rule (Machine.spec.trust.approvals), the\n" +
			"machine rejects irreversible calls without an approval: a file with the signatures of two of the approvers.\n\n" +
			"  orlopctl approval request --out reset.approval --signing-key alice.key -- reset --wipe all    # first operator\n" +
			"  orlopctl approval sign reset.approval --signing-key bob.key                                   # second operator\n" +
			"  orlopctl reset --wipe all --approval reset.approval                                           # any admin\n\n" +
			"Only `request` needs a machine. An approval is valid once on each machine that it lists, for at most 24 hours.",
	}
	c.AddCommand(approvalKeyCommand(ios), approvalRuleCommand(ios), approvalRequestCommand(ios), approvalShowCommand(ios), approvalSignCommand(ios))
	return c
}

func approvalKeyCommand(ios *iostreams.Streams) *cobra.Command {
	return &cobra.Command{
		Use: "key FILE", Short: "Make the key of an approver, and print its fingerprint", Args: cobra.ExactArgs(1),
		Long: "Make the key of an approver, and print its fingerprint for Machine.spec.trust.approvals.approvers. Each approver\n" +
			"makes a key, and gives only the fingerprint to others. An existing file is never replaced: the command prints the\n" +
			"fingerprint of its key.",
		RunE: func(_ *cobra.Command, args []string) error {
			key, err := pki.NewKey()
			if err != nil {
				return err
			}
			if _, err := os.Stat(args[0]); err == nil {
				if key, err = readSigningKey(args[0]); err != nil {
					return err
				}
			} else if err := secretfile.Write(args[0], pki.EncodeKey(key), false); err != nil {
				return err
			}
			ios.Println(pki.KeyFingerprint(&key.PublicKey))
			return nil
		},
	}
}

func approvalRuleCommand(ios *iostreams.Streams) *cobra.Command {
	return &cobra.Command{
		Use: "rule NAME=KEY…", Short: "Print the patch that sets a rule with these approvers", Args: cobra.MinimumNArgs(1),
		Long: "Print the patch that sets Machine.spec.trust.approvals with these approvers, for `orlopctl patch-config`. KEY is the\n" +
			"fingerprint of the approver's key, or the file with the key (orlopctl approval key).",
		Example: "  orlopctl approval rule alice=alice.key bob=sha256:… carol=sha256:… > rule.yaml",
		RunE: func(_ *cobra.Command, args []string) error {
			patch := "kind: Machine\nspec:\n  trust:\n    approvals:\n      approvers:\n"
			for _, arg := range args {
				name, key, named := strings.Cut(arg, "=")
				if !named {
					return exit.Usagef("approval rule: %q is not NAME=KEY", arg)
				}
				fingerprint, err := pki.ParseFingerprint(key)
				if err != nil && !strings.HasPrefix(key, "sha256:") {
					signing, err := readSigningKey(key)
					if err != nil {
						return err
					}
					fingerprint = pki.KeyFingerprint(&signing.PublicKey)
				} else if err != nil {
					return exit.Usagef("%w", err)
				}
				patch += fmt.Sprintf("        - {name: %q, key: %q}\n", name, fingerprint)
			}
			ios.Printf("%s", patch)
			return nil
		},
	}
}

// approvalRequest has the flags of `orlopctl approval request`.
type approvalRequest struct {
	out, key   string
	ttl        time.Duration
	force, yes bool
}

func approvalRequestCommand(ios *iostreams.Streams) *cobra.Command {
	var r approvalRequest
	c := &cobra.Command{
		Use: "request --out FILE -- COMMAND [ARG…]", Short: "Write the request of an approval for a command",
		Long: "Write the request of an approval. COMMAND is a command of this tool with all its flags, as it will be called later.\n" +
			"The command runs up to its guarded call, which is written to the file and not sent. With --nodes, the request is\n" +
			"for all these machines. Of a rotation, the request is for the next step of all machines.\n\n" +
			"With --signing-key, the command also signs the request (`orlopctl approval sign`).",
		Example: "  orlopctl approval request --out reset.approval --signing-key alice.key -- reset --wipe all --yes",
		Args:    cobra.MinimumNArgs(1),
		RunE:    func(_ *cobra.Command, args []string) error { return requestApproval(ios, args, r) },
	}
	f := c.Flags()
	f.StringVar(&r.out, "out", "", "file to write; required")
	f.StringVar(&r.key, "signing-key", "", "file with your key (orlopctl approval key); signs the request")
	f.DurationVar(&r.ttl, "ttl", approvalTTL, "validity of the approval; at most 23h")
	flags.Positive(f, "ttl", &r.ttl)
	f.BoolVar(&r.force, "force", false, "replace an existing file")
	f.BoolVar(&r.yes, "yes", false, "sign without a prompt for confirmation")
	must(c.MarkFlagRequired("out"))
	return c
}

// requestApproval runs a command of the tool with a recorder, and writes the recorded call.
func requestApproval(ios *iostreams.Streams, command []string, r approvalRequest) error {
	if err := vacant(r.out, r.force); err != nil {
		return err
	}
	inner := newTool(ios)
	inner.conn.Recorder = new(connect.Recorder)
	code, call := inner.run(command), inner.conn.Recorder
	switch {
	case code != exit.OK:
		return &exit.Error{Code: code, Err: errors.New("approval: nothing was requested, because the command has failed")}
	case call.Call == "":
		return exit.Usagef("approval: nothing to request: the command %q makes no guarded call", strings.Join(command, " "))
	}
	request, err := approval.NewRequest(call.Call, call.Machines, call.Content, time.Now().Add(-approvalBackdate), r.ttl+approvalBackdate)
	if err != nil {
		return exit.Usagef("%w", err)
	}
	file, err := approval.NewFile(request)
	if err != nil {
		return err
	}
	describeApproval(ios, request, nil)
	if r.key != "" {
		if file, err = signApproval(ios, file, r.key, r.yes); err != nil {
			return err
		}
	}
	if err := secretfile.Write(r.out, file.Encode(), r.force); err != nil {
		return err
	}
	ios.PrintProgress(fmt.Sprintf("wrote %s: %d of %d signatures", r.out, len(file.Signatures), approval.Signatures))
	return nil
}

func approvalShowCommand(ios *iostreams.Streams) *cobra.Command {
	return &cobra.Command{
		Use: "show FILE", Short: "Show the call of an approval, and the keys of its signatures", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			file, request, err := readApproval(ios, args[0])
			if err == nil {
				describeApproval(ios, request, file.Signatures)
			}
			return err
		},
	}
}

func approvalSignCommand(ios *iostreams.Streams) *cobra.Command {
	var key string
	var yes bool
	c := &cobra.Command{
		Use: "sign FILE --signing-key KEY", Short: "Approve a call: show it, and add your signature", Args: cobra.ExactArgs(1),
		Long: "Approve a call. The command shows the call, its machines and its validity, and adds your signature to the file.\n" +
			"It calls no machine. You must type \"yes\" first, unless --yes is given.",
		RunE: func(_ *cobra.Command, args []string) error {
			file, request, err := readApproval(ios, args[0])
			if err != nil {
				return err
			}
			describeApproval(ios, request, file.Signatures)
			if file, err = signApproval(ios, file, key, yes); err != nil {
				return err
			}
			if err := secretfile.Write(args[0], file.Encode(), true); err != nil {
				return err
			}
			ios.PrintProgress(fmt.Sprintf("signed %s: %d of %d signatures", args[0], len(file.Signatures), approval.Signatures))
			return nil
		},
	}
	c.Flags().StringVar(&key, "signing-key", "", "file with your key (orlopctl approval key); required")
	c.Flags().BoolVar(&yes, "yes", false, "do not prompt for confirmation")
	must(c.MarkFlagRequired("signing-key"))
	return c
}

// readApproval reads a file with an approval. It verifies no signature.
func readApproval(ios *iostreams.Streams, name string) (approval.File, approval.Request, error) {
	content, err := ios.ReadFile(name)
	if err != nil {
		return approval.File{}, approval.Request{}, err
	}
	file, err := approval.ParseFile(content)
	if err != nil {
		return approval.File{}, approval.Request{}, exit.Usagef("%s: %w", name, err)
	}
	request, err := file.Request()
	if err != nil {
		return approval.File{}, approval.Request{}, exit.Usagef("%s: %w", name, err)
	}
	return file, request, nil
}

// describeApproval prints the call of an approval, and the keys that signed it.
func describeApproval(ios *iostreams.Streams, r approval.Request, signatures []approval.Signature) {
	for _, line := range r.Describe(api.ApprovalRuleOf(r.Call).GetEffect()) {
		ios.Println(line)
	}
	for _, s := range signatures {
		ios.Println("signed by the key " + s.Fingerprint())
	}
}

// signApproval signs an approval, after the operator has typed "yes".
func signApproval(ios *iostreams.Streams, file approval.File, keyFile string, yes bool) (approval.File, error) {
	for _, s := range file.Signatures {
		if !s.Signs(file.Text) {
			return file, exit.Usagef("approval: the signature of the key %s is not that of this text; request the approval again", s.Fingerprint())
		}
	}
	key, err := readSigningKey(keyFile)
	if err != nil {
		return file, err
	}
	if !yes {
		_, _ = fmt.Fprint(ios.Err, "Type yes to sign: ")
		ctx, stop := connect.Interruptible()
		defer stop()
		if err := typeYes(ctx, ios.In); err != nil {
			return file, err
		}
	}
	signed, err := file.Sign(key)
	if err != nil {
		return file, exit.Usagef("%w", err)
	}
	return signed, nil
}

// typeYes returns nil if the operator types "yes".
func typeYes(ctx context.Context, in io.Reader) error {
	typed, err := readLine(ctx, in)
	if err == nil && typed != "yes" {
		err = exit.Usagef("not signed: you typed %q", typed)
	}
	return err
}

// readSigningKey reads the key of an approver.
func readSigningKey(name string) (*ecdsa.PrivateKey, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, exit.Usagef("--signing-key: cannot read: %w", err)
	}
	key, err := pki.ParseKey(text)
	if err != nil {
		return nil, exit.Usagef("--signing-key: %s: %w", name, err)
	}
	return key, nil
}
