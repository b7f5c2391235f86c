package rotation

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
)

// keyStepNames maps a state to the name of the step that leads to it.
var keyStepNames = []string{accepted: "accept", issues: "encrypt", newOnly: "drop"}

// KeyCommand returns the command `trust rotate-key`.
func KeyCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	r := keyRotation{rollout: rollout{ios: ios, conn: conn}}
	c := &cobra.Command{
		Use:   "rotate-key",
		Short: "Replace the key that encrypts Secrets in the cluster's data",
		Long: "Replace the key that encrypts Secrets in the cluster's data, on all endpoints of the context, or on the machines of\n" +
			"--nodes. These must be all control-plane machines of the cluster. The rotation has three steps, and a step begins\n" +
			"after all machines have performed the previous step. In step accept, the machines accept the new key beside the old\n" +
			"key. In step encrypt, they encrypt with the new key. In step drop, they re-encrypt all Secrets that the old key\n" +
			"encrypts, and then drop the old key. Each step restarts the API servers of the machines, one after the other.\n\n" +
			"This computer makes the new key, and stores it in the file of secrets. The old key stays in the file too, because\n" +
			"earlier backups need it. If the command is interrupted, call it again: it continues with the remaining steps.",
		Example: "  orlopctl trust rotate-key --secrets secrets.yaml --dry-run\n  orlopctl trust rotate-key --secrets secrets.yaml -n 10.0.0.11,10.0.0.12,10.0.0.13",
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return r.run(&r) },
	}
	r.flags(c.Flags(), "key")
	return c
}

// keyRotation is a run of `trust rotate-key`.
type keyRotation struct {
	rollout
	keys map[string]string // name → key in base64
	next string
	all  []encryptionKeys // the keys of each machine, in the order of the fleet
}

func (r *keyRotation) state(i int) (state, bool) { return r.all[i].state(r.next), r.all[i].own != "" }

func (r *keyRotation) stepName(to state) string { return keyStepNames[to] }

func (r *keyRotation) newValue() string { return "the key " + r.next }

// waitEffective waits until every machine is healthy and its services have restarted with the keys
// of the latest step. It also runs at the start of the command, so an interrupted command can be
// repeated.
func (r *keyRotation) waitEffective(ctx context.Context, _ state) error {
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

// begin reads the new key from the file of secrets. If the file has none, begin makes a key and
// stores it in the file before a machine gets it.
func (r *keyRotation) begin(ctx context.Context) error {
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

// readStates reads the key names and roles of the machines. It returns an error if control-plane
// machines are missing.
func (r *keyRotation) readStates(ctx context.Context) error {
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
				r.all[i].role.machine = version.Machine
			}
			return err
		})
		if err != nil {
			return withMachine(name, err)
		}
	}
	return checkEncryptionKeys(r.fleet.Names, r.all, config.NewEncryptionKey([32]byte(r.secrets.SecretsEncryptionKey)).Name(), r.next)
}

// request returns the request for the next step of machine i.
func (r *keyRotation) request(i int, mode api.ApplyRequest_Mode) (*api.ApplyRequest, error) {
	patch, err := r.all[i].step(r.next).patch(r.keys)
	return &api.ApplyRequest{Documents: patch, Filename: "rotate-key", Patch: true, Mode: mode}, err
}

// apply performs the next step of machine i, and prints the machine's operations in etcd, which
// state the number of re-encrypted Secrets.
func (r *keyRotation) apply(ctx context.Context, i int) error {
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

// finish replaces the old key in the file of secrets. The old key stays there as a former key.
func (r *keyRotation) finish() error {
	r.secrets.FormerEncryptionKeys = append(r.secrets.FormerEncryptionKeys, r.secrets.SecretsEncryptionKey)
	r.secrets.SecretsEncryptionKey, r.secrets.NextEncryptionKey = r.secrets.NextEncryptionKey, nil
	if err := r.secrets.Write(r.file, true); err != nil {
		return err
	}
	r.ios.Printf("done: %s is now the only encryption key, on the machines and in %s; the previous key stays there for earlier backups (formerEncryptionKeys)\n", r.next, r.file)
	return nil
}
