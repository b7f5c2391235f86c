package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
)

// How the key that seals Secrets is replaced (docs/decisions/0027-ca-rotation.md): by the same states as a CA (rotation.go), but that keys are
// known here by their names, because no machine shows one.

// keyStepNames are the names of the steps that lead to the states.
var keyStepNames = []string{accepted: "accept", issues: "seal", alone: "drop"}

// sealing is what a control-plane machine has of keys, by name. The zero sealing is a worker's.
type sealing struct {
	own      string   // seals
	accepted []string // is read by too
	// members are the control-plane machines that its configuration names.
	members []string
}

// readSealing reads it from topic "configuration" and from the documents, out of which the keys were taken.
func readSealing(topic, documents []byte) (s sealing, err error) {
	var shown struct {
		Sealing []string `json:"sealing"`
	}
	if err := json.Unmarshal(topic, &shown); err != nil {
		return s, fmt.Errorf("configuration: cannot read the machine's answer: %w", err)
	}
	if len(shown.Sealing) > 0 {
		s.own, s.accepted = shown.Sealing[0], shown.Sealing[1:]
	}
	for dec := yaml.NewDecoder(bytes.NewReader(documents)); ; {
		var doc struct {
			Kind string `yaml:"kind"`
			Spec struct {
				ControlPlanes []string `yaml:"controlPlanes"`
			} `yaml:"spec"`
		}
		switch err := dec.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return s, nil
		case err != nil:
			return s, fmt.Errorf("configuration: cannot read the machine's answer: %w", err)
		case doc.Kind == "Cluster":
			s.members = doc.Spec.ControlPlanes
		}
	}
}

// state is how far the machine is with the next key.
func (s sealing) state(next string) state {
	switch {
	case s.own != next && !slices.Contains(s.accepted, next):
		return before
	case s.own != next:
		return accepted
	case len(s.accepted) > 0:
		return issues
	}
	return alone
}

// step is what the machine has one state later. What it reads by it reads by until the last step.
func (s sealing) step(next string) sealing {
	switch s.state(next) {
	case before:
		s.accepted = append(slices.Clone(s.accepted), next)
	case accepted:
		others := slices.DeleteFunc(slices.Clone(s.accepted), func(name string) bool { return name == next })
		s.accepted, s.own = append([]string{s.own}, others...), next
	default:
		s.accepted = nil
	}
	return s
}

// patch is what changes in the machine's configuration when it comes to have s. keys are those that are known here, by name.
func (s sealing) patch(keys map[string]string) ([]byte, error) {
	var list []string // null removes it
	for _, name := range append([]string{s.own}, s.accepted...) {
		if keys[name] == "" {
			return nil, usagef("the machine has the key of Secrets %s, which is not in the file of secrets; add it there to formerEncryptionKeys", name)
		}
	}
	for _, name := range s.accepted {
		list = append(list, keys[name])
	}
	return sigsyaml.Marshal(map[string]any{"kind": "Cluster", "spec": map[string]any{"secretsEncryptionKey": keys[s.own], "acceptedEncryptionKeys": list}})
}

// checkSealing refuses what is not all of one cluster's control plane, or another one's file of secrets. own is the key in the file.
func checkSealing(names []string, all []sealing, own, next string) error {
	with := 0
	for i, s := range all {
		if s.own == "" {
			continue
		}
		with++
		if s.own != own && s.own != next && !slices.Contains(s.accepted, own) {
			return &exitError{code: exitUsage, err: fmt.Errorf("machine %s: does not know the key of Secrets in the file of secrets: it is another cluster's, or was replaced without the file; nothing was changed", names[i]), hint: "name the cluster's own file with --secrets"}
		}
	}
	for i, s := range all { // one that did not learn of the new key in time could not read what the others seal
		if s.own != "" && len(s.members) > with {
			return &exitError{code: exitUsage, err: fmt.Errorf("machine %s: its cluster has %d control-plane machines (%s), and %d of those that were named have a control plane; nothing was changed", names[i], len(s.members), strings.Join(s.members, ", "), with), hint: "name all of them with -n"}
		}
	}
	if with == 0 {
		return &exitError{code: exitUsage, err: errors.New("no machine has a key of Secrets in its configuration (Cluster.spec.secretsEncryptionKey); nothing was changed"), hint: "name the control-plane machines with -n"}
	}
	return nil
}

func (t *tool) trustRotateKeyCommand() *cobra.Command {
	r := rotatingKey{rollout: rollout{tool: t}}
	c := &cobra.Command{
		Use:   "rotate-key",
		Short: "Replace the key that seals Secrets in the cluster's data",
		Long: "Replace the key that seals Secrets in the cluster's data, on all endpoints of the context, or on the machines that --nodes names: these\n" +
			"have to be all control-plane machines of the cluster. It takes three configurations, each on every machine before the next: the new\n" +
			"key is accepted; it seals; the old one is dropped, before which the machine writes all Secrets again that are sealed by it. The API\n" +
			"server of one machine after the other starts anew at each step. The new key is made here, and kept in the file of secrets; the old\n" +
			"one stays there too, because backups from before need it. Who is stopped calls it again: it goes on where it was.",
		Example: "  orlopctl trust rotate-key --secrets secrets.yaml --dry-run\n  orlopctl trust rotate-key --secrets secrets.yaml -n 10.0.0.11,10.0.0.12,10.0.0.13",
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return r.run() },
	}
	f := c.Flags()
	f.StringVar(&r.file, "secrets", "secrets.yaml", "the cluster's secrets; the new key is added to the file, and takes the old one's place at the end")
	f.BoolVar(&r.dryRun, "dry-run", false, "change nothing, only say which step is next and what would be done")
	f.BoolVar(&r.oneStep, "one-step", false, "take one step on every machine, and no more")
	return c
}

// rotatingKey is the replacing of the key.
type rotatingKey struct {
	rollout
	file            string
	dryRun, oneStep bool

	secrets *secrets
	keys    map[string]string // in base64, by name
	next    string
	all     []sealing // of the machines of the fleet
}

func (r *rotatingKey) run() (err error) {
	ctx, stop := interruptible()
	defer stop()
	if r.secrets, err = readSecrets(r.file); err != nil {
		return err
	}
	if r.fleet, err = r.tool.fleet(); err != nil {
		return err
	}
	defer r.fleet.close()
	if err := r.begin(ctx); err != nil {
		return err
	}
	for taken := false; ; taken = true {
		if err := r.look(ctx); err != nil {
			return err
		}
		at := alone // of the machine that is least far: only those take a step
		for _, s := range r.all {
			if s.own != "" {
				at = min(at, s.state(r.next))
			}
		}
		switch {
		case at == alone:
			return r.finish()
		case taken && r.oneStep:
			r.tool.printf("stopped after one step; the next is %q, by the same command\n", keyStepNames[at+1])
			return nil
		}
		r.tool.printf("step %d of 3: %s the key %s\n", at+1, keyStepNames[at+1], r.next)
		for i, s := range r.all {
			if s.own == "" || s.state(r.next) != at {
				continue
			}
			if err := r.advance(ctx, i, s); err != nil {
				return withMachine(r.fleet.names[i], err)
			}
		}
		if r.dryRun {
			return nil
		}
	}
}

// begin finds the new key in the file of secrets, or makes it and keeps it there before any machine has it.
func (r *rotatingKey) begin(ctx context.Context) error {
	begun := len(r.secrets.NextEncryptionKey) > 0
	next := r.secrets.NextEncryptionKey
	if !begun {
		next = make([]byte, 32)
		if _, err := rand.Read(next); err != nil {
			return fmt.Errorf("secrets: cannot draw a key: %w", err)
		}
	}
	r.keys = map[string]string{}
	name := func(raw []byte) string {
		if len(raw) != 32 {
			return ""
		}
		key := config.NewEncryptionKey([32]byte(raw))
		r.keys[key.Name()] = base64.StdEncoding.EncodeToString(raw)
		return key.Name()
	}
	for _, former := range r.secrets.FormerEncryptionKeys {
		name(former)
	}
	if r.next = name(next); name(r.secrets.SecretsEncryptionKey) == "" || r.next == "" {
		return usagef("%s: secretsEncryptionKey, nextEncryptionKey: cannot use: expected 32 bytes in base64", r.file)
	}
	if err := r.look(ctx); err != nil || begun || r.dryRun {
		return err
	}
	r.secrets.NextEncryptionKey = next
	if err := r.secrets.write(r.file, true); err != nil {
		return err
	}
	r.tool.println("made a new key and added it to " + r.file)
	return nil
}

// look reads what the machines have.
func (r *rotatingKey) look(ctx context.Context) error {
	r.all = make([]sealing, len(r.fleet.names))
	for i, name := range r.fleet.names {
		err := r.fleet.call(ctx, i, func(ctx context.Context, c *client.Client) error {
			topic, err := c.Machine.Get(ctx, &api.GetRequest{Topic: "configuration"})
			if err != nil {
				return err
			}
			documents, err := c.Config.Get(ctx, &api.GetConfigRequest{})
			if err != nil {
				return err
			}
			text, err := topic.Value.MarshalJSON()
			if err == nil {
				r.all[i], err = readSealing(text, documents.Documents)
			}
			return err
		})
		if err != nil {
			return withMachine(name, err)
		}
	}
	return checkSealing(r.fleet.names, r.all, config.NewEncryptionKey([32]byte(r.secrets.SecretsEncryptionKey)).Name(), r.next)
}

// advance has one machine take its next step, or say what that would be.
func (r *rotatingKey) advance(ctx context.Context, i int, s sealing) error {
	patch, err := s.step(r.next).patch(r.keys)
	if err != nil {
		return err
	}
	request := &api.ApplyRequest{Documents: patch, Filename: "rotate-key", Patch: true, Mode: api.ApplyRequest_MODE_NO_REBOOT}
	if !r.dryRun {
		operations, err := r.take(ctx, i, request)
		for _, op := range operations {
			if strings.HasPrefix(op, "etcd: ") { // how many Secrets were written again
				r.tool.println("    " + op)
			}
		}
		return err
	}
	r.tool.println("  machine " + r.fleet.names[i])
	request.Mode = api.ApplyRequest_MODE_DRY_RUN
	return r.fleet.call(ctx, i, func(ctx context.Context, c *client.Client) error {
		answer, err := c.Config.Apply(ctx, request)
		for _, op := range answer.GetOperations() {
			r.tool.println("    " + op)
		}
		return err
	})
}

// finish puts the new key into the old one's place, here.
func (r *rotatingKey) finish() error {
	if r.dryRun {
		r.tool.println("the machines have taken every step; what is left is the file of secrets")
		return nil
	}
	r.secrets.FormerEncryptionKeys = append(r.secrets.FormerEncryptionKeys, r.secrets.SecretsEncryptionKey)
	r.secrets.SecretsEncryptionKey, r.secrets.NextEncryptionKey = r.secrets.NextEncryptionKey, nil
	if err := r.secrets.write(r.file, true); err != nil {
		return err
	}
	r.tool.printf("done: %s is the only key of Secrets now, on the machines and in %s; the one before stays there for backups from before (formerEncryptionKeys)\n", r.next, r.file)
	return nil
}
