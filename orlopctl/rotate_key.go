package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
)

// The rotation of the encryption key for Secrets (docs/decisions/0027-ca-rotation.md). It has the
// same states as the rotation of a CA (rotation.go), but identifies keys by their names, because no
// machine returns a key.

// keyStepNames are the names of the steps to each state.
var keyStepNames = []string{accepted: "accept", issues: "seal", newOnly: "drop"}

// encryptionKeys holds the names of a control-plane machine's encryption keys. The zero value is
// that of a worker.
type encryptionKeys struct {
	own      string   // encrypts
	accepted []string // also decrypt
	plane
}

// readEncryptionKeys reads the key names from topic "configuration", and the membership of the
// control plane from the documents without secrets.
func readEncryptionKeys(topic, documents []byte) (s encryptionKeys, err error) {
	var shown struct {
		EncryptionKeys []string `json:"encryptionKeys"`
	}
	if err := json.Unmarshal(topic, &shown); err != nil {
		return s, fmt.Errorf("configuration: cannot read the machine's answer: %w", err)
	}
	if len(shown.EncryptionKeys) > 0 {
		s.own, s.accepted = shown.EncryptionKeys[0], shown.EncryptionKeys[1:]
	}
	s.plane, err = readPlane(documents)
	return s, err
}

func sameName(a, b string) bool { return a == b }

// state returns the state of the machine for the next key.
func (s encryptionKeys) state(next string) state { return stateOf(sameName, s.own, s.accepted, next) }

// step returns the keys of the machine one state later. Keys that decrypt are retained until the
// last step.
func (s encryptionKeys) step(next string) encryptionKeys {
	s.own, s.accepted = stepOf(sameName, s.own, s.accepted, next)
	return s
}

// patch returns the patch that gives the machine the keys of s. keys maps the known names to keys.
func (s encryptionKeys) patch(keys map[string]string) ([]byte, error) {
	var list []string // null removes it
	for _, name := range append([]string{s.own}, s.accepted...) {
		if keys[name] == "" {
			return nil, exit.Usagef("the machine has the encryption key %s, which is not in the file of secrets; add it there to formerEncryptionKeys, or remove it from the machine (acceptedEncryptionKeys)", name)
		}
	}
	for _, name := range s.accepted {
		list = append(list, keys[name])
	}
	return sigsyaml.Marshal(map[string]any{"kind": "Cluster", "spec": map[string]any{"secretsEncryptionKey": keys[s.own], "acceptedEncryptionKeys": list}})
}

// checkEncryptionKeys rejects an incomplete control plane, and a file of secrets of another
// cluster. own is the key in the file.
func checkEncryptionKeys(names []string, all []encryptionKeys, own, next string) error {
	planes := make([]plane, len(all))
	for i, s := range all {
		planes[i] = s.plane
		if s.own != "" && s.own != own && s.own != next && !slices.Contains(s.accepted, own) {
			return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("machine %s: does not have the encryption key in the file of secrets: the file is another cluster's, or the key was replaced without the file", names[i]), Hint: "name the cluster's own file with --secrets"}
		}
	}
	machines, err := checkPlane(names, planes)
	if err != nil {
		return err
	}
	if machines == 0 {
		return &exit.Error{Code: exit.Usage, Err: errors.New("no machine has an encryption key in its configuration (Cluster.spec.secretsEncryptionKey)"), Hint: "name the control-plane machines with -n"}
	}
	return nil
}

func trustRotateKeyCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	r := rotatingKey{rollout: rollout{ios: ios, conn: conn}}
	c := &cobra.Command{
		Use:   "rotate-key",
		Short: "Replace the key that encrypts Secrets in the cluster's data",
		Long: "Replace the key that encrypts Secrets in the cluster's data, on all endpoints of the context, or on the\n" +
			"machines of --nodes: these must be all control-plane machines of the cluster. The rotation takes three\n" +
			"configurations, each on every machine before the next: the new key is accepted; it encrypts; the old key is\n" +
			"dropped, and before this the machine re-encrypts all Secrets that the old key encrypts. Each step restarts the\n" +
			"API servers of the machines, one after the other. The new key is made on this computer, and stored in the file\n" +
			"of secrets; the old key stays there too, because earlier backups need it. If the command is interrupted, call\n" +
			"it again: it continues in the same place.",
		Example: "  orlopctl trust rotate-key --secrets secrets.yaml --dry-run\n  orlopctl trust rotate-key --secrets secrets.yaml -n 10.0.0.11,10.0.0.12,10.0.0.13",
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return r.run(&r) },
	}
	r.flags(c.Flags(), "key")
	return c
}

// rotatingKey is the rotation of the encryption key.
type rotatingKey struct {
	rollout
	keys map[string]string // in base64, by name
	next string
	all  []encryptionKeys // of the machines of the fleet
}

func (r *rotatingKey) state(i int) (state, bool) { return r.all[i].state(r.next), r.all[i].own != "" }

func (r *rotatingKey) stepName(to state) string { return keyStepNames[to] }

func (r *rotatingKey) what() string { return "the key " + r.next }

// waitEffective waits until every machine's API server runs with the latest step. An interrupted
// command can therefore be repeated.
func (r *rotatingKey) waitEffective(ctx context.Context, _ state) error {
	for i, name := range r.fleet.Names {
		if _, has := r.state(i); !has {
			continue
		}
		err := r.awaitTopic(ctx, i, "configuration", func(text []byte) (string, error) {
			var shown struct {
				WaitingFor []string `json:"waitingFor"`
			}
			if err := json.Unmarshal(text, &shown); err != nil {
				return "", fmt.Errorf("configuration: cannot read the machine's answer: %w", err)
			}
			if len(shown.WaitingFor) > 0 {
				return "does not run with the configuration yet: " + strings.Join(shown.WaitingFor, ", "), nil
			}
			return "", nil
		})
		if err == nil {
			err = r.healthy(ctx, i)
		}
		if err != nil {
			return withMachine(name, err)
		}
	}
	return nil
}

// begin reads the new key from the file of secrets, or creates it and stores it there before any
// machine gets it.
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
		return exit.Usagef("%s: secretsEncryptionKey, nextEncryptionKey: cannot use: expected 32 bytes in base64", r.file)
	}
	if err := r.readStates(ctx); err != nil || begun || r.dryRun {
		return err
	}
	r.secrets.NextEncryptionKey = next
	if err := r.secrets.Write(r.file, true); err != nil {
		return err
	}
	r.ios.Println("made a new key and added it to " + r.file)
	return nil
}

// readStates reads the key names of the machines.
func (r *rotatingKey) readStates(ctx context.Context) error {
	r.all = make([]encryptionKeys, len(r.fleet.Names))
	for i, name := range r.fleet.Names {
		err := r.fleet.Call(ctx, i, func(ctx context.Context, c *client.Client) error {
			topic, err := c.Machine.Get(ctx, &api.GetRequest{Topic: "configuration"})
			if err != nil {
				return err
			}
			documents, err := c.Config.Get(ctx, &api.GetConfigRequest{})
			if err != nil {
				return err
			}
			version, err := c.Machine.Version(ctx, &api.VersionRequest{})
			if err != nil {
				return err
			}
			text, err := topic.Value.MarshalJSON()
			if err == nil {
				r.all[i], err = readEncryptionKeys(text, documents.Documents)
				r.all[i].machine = version.Machine
			}
			return err
		})
		if err != nil {
			return withMachine(name, err)
		}
	}
	return checkEncryptionKeys(r.fleet.Names, r.all, config.NewEncryptionKey([32]byte(r.secrets.SecretsEncryptionKey)).Name(), r.next)
}

// request returns the next step of a machine.
func (r *rotatingKey) request(i int, mode api.ApplyRequest_Mode) (*api.ApplyRequest, error) {
	patch, err := r.all[i].step(r.next).patch(r.keys)
	return &api.ApplyRequest{Documents: patch, Filename: "rotate-key", Patch: true, Mode: mode}, err
}

// apply performs the next step of a machine, and prints the number of re-encrypted Secrets.
func (r *rotatingKey) apply(ctx context.Context, i int) error {
	request, err := r.request(i, api.ApplyRequest_MODE_NO_REBOOT)
	if err != nil {
		return err
	}
	operations, err := r.performStep(ctx, i, request)
	for _, op := range operations {
		if strings.HasPrefix(op, "etcd: ") {
			r.ios.Println("    " + op)
		}
	}
	return err
}

// finish replaces the old key in the local file.
func (r *rotatingKey) finish() error {
	r.secrets.FormerEncryptionKeys = append(r.secrets.FormerEncryptionKeys, r.secrets.SecretsEncryptionKey)
	r.secrets.SecretsEncryptionKey, r.secrets.NextEncryptionKey = r.secrets.NextEncryptionKey, nil
	if err := r.secrets.Write(r.file, true); err != nil {
		return err
	}
	r.ios.Printf("done: %s is now the only encryption key, on the machines and in %s; the previous key stays there for earlier backups (formerEncryptionKeys)\n", r.next, r.file)
	return nil
}
