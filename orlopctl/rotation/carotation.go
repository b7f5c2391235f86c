package rotation

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/flags"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
)

// rotatable describes a CA that the command can replace.
type rotatable struct {
	field string // field in Cluster.spec.pki and in the file of secrets
	cn    string // common name of the new CA
	// hold is the minimum time between two steps. Within this time, the clients that read their
	// files only at intervals have read them again.
	hold time.Duration
	end  string // the remaining work of the operator after the rotation
}

// kubernetesHold is longer than the intervals at which clients of Kubernetes read their files
// again. They read their CA and certificate every 5 minutes (client-go, transport:
// caRefreshDuration, CertCallbackRefreshDuration). A volume of a pod gets a new CA within 2
// minutes.
const kubernetesHold = 10 * time.Minute

var rotatables = map[string]rotatable{
	"client":      {"client", "orlop clients", 0, "clients with an earlier certificate by a machine need a new certificate (`orlopctl trust issue`)"},
	"machine":     {"machine", "orlop machines", 0, "other operators: `orlopctl config set NAME --ca` with the new secrets"},
	"kubernetes":  {"kubernetes", "kubernetes", kubernetesHold, "`orlopctl kubeconfig --force` makes new kubeconfigs; earlier kubeconfigs are rejected"},
	"front-proxy": {"frontProxy", "kubernetes front proxy", kubernetesHold, ""},
	"etcd":        {"etcd", "etcd", 0, ""},
}

// CACommand returns the command `trust rotate-ca`.
func CACommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	r := caRotation{rollout: rollout{ios: ios, conn: conn}}
	names := slices.Sorted(maps.Keys(rotatables))
	c := &cobra.Command{
		Use:   "rotate-ca " + strings.Join(names, "|"),
		Short: "Replace one of the cluster's CAs while the cluster serves",
		Long: "Replace one of the cluster's CAs while the cluster serves, on all endpoints of the context, or on the machines of\n" +
			"--nodes. These must be all machines of the cluster. The rotation has three steps, and a step begins after all\n" +
			"machines have performed the previous step. In step accept, the machines accept the new CA beside the old CA. In\n" +
			"step issue, the new CA issues, and the machines renew their certificates. In step drop, they drop the old CA. This\n" +
			"computer makes the new CA, and stores it in the file of secrets. If the command is interrupted, call it again: it\n" +
			"continues with the remaining steps.\n\n" +
			"kubernetes: pods that read the cluster's CA only at their start (kube-root-ca.crt) must be restarted between the\n" +
			"first and the second step; --one-step stops there. etcd: the first and the last step restart the API server.",
		Example:   "  orlopctl trust rotate-ca kubernetes --secrets secrets.yaml --dry-run\n  orlopctl trust rotate-ca kubernetes --secrets secrets.yaml",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: names,
		RunE: func(c *cobra.Command, args []string) error {
			r.name, r.ca = args[0], rotatables[args[0]]
			if !c.Flags().Changed("hold") {
				r.hold = r.ca.hold
			}
			return r.run(&r)
		},
	}
	f := c.Flags()
	r.flags(f, "CA")
	f.DurationVar(&r.hold, "hold", 0, "minimum time between two steps (default: 10m for kubernetes and front-proxy, 0s for the other CAs)")
	flags.NotNegative(f, "hold", &r.hold)
	f.BoolVar(&r.force, "force", false, "for client: drop the old CA even if other clients have only certificates that it issued")
	return c
}

// stepNames maps a state to the name of the step that leads to it.
var stepNames = []string{accepted: "accept", issues: "issue", newOnly: "drop"}

// caRotation is a run of `trust rotate-ca`.
type caRotation struct {
	rollout
	name  string
	ca    rotatable
	force bool
	hold  time.Duration

	next *pki.CA
	all  []holding // the CAs of each machine, in the order of the fleet
}

func (r *caRotation) state(i int) (state, bool) {
	if r.all[i].own == nil {
		return 0, false
	}
	return r.all[i].state(r.next.Cert), true
}

func (r *caRotation) stepName(to state) string { return stepNames[to] }

func (r *caRotation) newValue() string { return r.next.Cert.Subject.String() }

// begin reads the new CA from the file of secrets. If the file has none, begin makes a CA and
// stores it in the file before a machine gets it.
func (r *caRotation) begin(ctx context.Context) error {
	pair, begun := r.secrets.Next[r.ca.field]
	var err error
	if begun {
		r.next, err = pki.ParseCA([]byte(pair.Cert), []byte(pair.Key))
	} else {
		r.next, err = pki.NewCA(r.ca.cn, gen.ClusterCATTL)
	}
	if err != nil {
		return fmt.Errorf("%s: the new CA: %w", r.file, err)
	}
	if r.ca.field == "machine" {
		r.fleet.Trust = r.next.Cert
	}
	if err := r.readStates(ctx); err != nil || begun || r.dryRun {
		return err
	}
	if r.secrets.Next == nil {
		r.secrets.Next = map[string]gen.Pair{}
	}
	r.secrets.Next[r.ca.field] = gen.Pair{Cert: string(r.next.CertPEM()), Key: string(r.next.KeyPEM())}
	if err := r.secrets.Write(r.file, true); err != nil {
		return err
	}
	r.ios.Println("made a new CA and added it to " + r.file)
	return nil
}

// readStates reads the CAs and roles in the machines' configurations. It returns an error if the
// fleet lacks machines of the cluster.
func (r *caRotation) readStates(ctx context.Context) error {
	r.all = make([]holding, len(r.fleet.Names))
	roles := make([]machineRole, len(r.all))
	workers := map[string]string{}
	for i, name := range r.fleet.Names {
		if err := r.fleet.Call(ctx, i, func(ctx context.Context, c *client.Client) (err error) {
			r.all[i], roles[i], err = readMachine(ctx, c, r.ca.field, workers)
			return err
		}); err != nil {
			return withMachine(name, err)
		}
	}
	if _, err := checkRoles(r.fleet.Names, roles); err != nil {
		return err
	}
	r.roles = roles
	if r.ca.field == "kubernetes" || r.ca.field == "machine" || r.ca.field == "client" {
		if err := checkWorkers(roles, workers); err != nil {
			return err
		}
	}
	var known *x509.Certificate
	if text := r.secrets.Authority(r.ca.field).Cert; text != "" {
		var err error
		if known, err = pki.ParseCert([]byte(text)); err != nil {
			return exit.Usagef("%s: %s: %w", r.file, r.ca.field, err)
		}
	}
	return related(r.fleet.Names, r.all, known, r.next.Cert)
}

// readMachine returns the CA in `field` of Cluster.spec.pki of a machine, and the role of the
// machine. It adds the workers that the machine knows to workers, which maps their names to
// addresses.
func readMachine(ctx context.Context, c *client.Client, field string, workers map[string]string) (h holding, role machineRole, err error) {
	answer, err := c.Config.Get(ctx, &api.GetConfigRequest{})
	if err != nil {
		return h, role, err
	}
	if h, err = readHolding(answer.Documents, field); err != nil {
		return h, role, err
	}
	if role, err = readRole(answer.Documents); err != nil {
		return h, role, err
	}
	version, err := c.Machine.Version(ctx, &api.VersionRequest{})
	if err != nil {
		return h, role, err
	}
	role.machine = version.Machine
	list, err := c.Cluster.ListMembers(ctx, &api.ListMembersRequest{})
	for _, m := range list.GetMembers() {
		workers[m.Name] = m.Address
	}
	return h, role, err
}

// apply performs the next step of a machine.
func (r *caRotation) apply(ctx context.Context, i int) error {
	request, err := r.request(i, api.ApplyRequest_MODE_NO_REBOOT)
	if err != nil {
		return err
	}
	_, err = r.performStep(ctx, i, request)
	return err
}

// request returns the request for the next step of machine i.
func (r *caRotation) request(i int, mode api.ApplyRequest_Mode) (*api.ApplyRequest, error) {
	was := r.all[i]
	patch, err := was.step(r.next.Cert).patch(r.ca.field, was, string(r.next.KeyPEM()))
	return &api.ApplyRequest{Documents: patch, Filename: "rotate-ca", Patch: true, Mode: mode}, err
}

// waitEffective waits until the state `at` is effective on all machines: their files correspond to
// this state, the machines are healthy, and the hold time has passed. It then prepares the next
// step.
func (r *caRotation) waitEffective(ctx context.Context, at state) error {
	for i, h := range r.all {
		if h.own == nil {
			continue
		}
		err := r.awaitTopic(ctx, i, "certificates", func(text []byte) (string, error) {
			var files []shownCertificate
			if err := json.Unmarshal(text, &files); err != nil {
				return "", fmt.Errorf("certificates: cannot read the machine's answer: %w", err)
			}
			return pendingFile(h, r.next.Cert, files), nil
		})
		if err == nil {
			err = r.healthy(ctx, i)
		}
		if err == nil && at != newOnly {
			err = r.held(ctx, i)
		}
		if err != nil {
			return withMachine(r.fleet.Names[i], err)
		}
	}
	switch at {
	case accepted:
		return r.trustInContexts(r.next.Cert)
	case issues:
		return r.replaceOwnCertificate(ctx)
	}
	return nil
}

// held waits until the configuration of machine i has been active for the hold time.
func (r *caRotation) held(ctx context.Context, i int) error {
	since, err := r.since(ctx, i)
	left := time.Until(since.Add(r.hold))
	if err != nil || left <= 0 {
		return err
	}
	r.ios.Printf("  machine %s: waits %s for clients that read their files only at intervals\n", r.fleet.Names[i], left.Round(time.Second))
	if backoff.Sleep(ctx, left) != nil {
		return errors.New("stopped during a wait; call it again: it continues in the same place")
	}
	return nil
}

// The method since returns the time at which the active configuration of machine i became active.
func (r *caRotation) since(ctx context.Context, i int) (time.Time, error) {
	var shown struct {
		Applied time.Time `json:"applied"`
	}
	err := r.fleet.Call(ctx, i, func(ctx context.Context, c *client.Client) error {
		answer, err := c.Machine.Get(ctx, &api.GetRequest{Topic: "configuration"})
		if err != nil {
			return err
		}
		text, err := answer.Value.MarshalJSON()
		if err == nil {
			err = json.Unmarshal(text, &shown)
		}
		return err
	})
	return shown.Applied, err
}

// trustInContexts adds a machine CA to every context of this cluster. It runs before the machines
// have certificates of the new CA.
func (r *caRotation) trustInContexts(ca *x509.Certificate) error {
	return r.changeContexts(func(known []*x509.Certificate) []*x509.Certificate { return append(known, ca) })
}

// changeContexts changes the CAs in all contexts of this cluster. It does nothing if the rotated CA
// is not the machine CA, because contexts contain no other CAs.
func (r *caRotation) changeContexts(change func([]*x509.Certificate) []*x509.Certificate) error {
	if r.ca.field != "machine" {
		return nil
	}
	return contexts.Change(func(f *contexts.File) error {
		for name, c := range f.Contexts {
			known, err := pki.ParseCerts([]byte(c.CA))
			ours := func(c *x509.Certificate) bool {
				return slices.ContainsFunc(r.all, func(h holding) bool { return h.own != nil && h.trusts(c) })
			}
			if err != nil || !slices.ContainsFunc(known, ours) {
				continue // the context has a fingerprint, or belongs to another cluster
			}
			c.CA = string(pki.EncodeCerts(change(known)...))
			f.Contexts[name] = c
		}
		return nil
	})
}

// finish replaces the old CA in the contexts and in the file of secrets.
func (r *caRotation) finish() error {
	*r.secrets.Authority(r.ca.field) = r.secrets.Next[r.ca.field]
	delete(r.secrets.Next, r.ca.field)
	if err := r.changeContexts(func([]*x509.Certificate) []*x509.Certificate { return []*x509.Certificate{r.next.Cert} }); err != nil {
		return err
	}
	if err := r.secrets.Write(r.file, true); err != nil {
		return err
	}
	r.ios.Printf("done: %s is the only %s CA now, on the machines and in %s\n", r.next.Cert.Subject, r.name, r.file)
	if r.ca.end != "" {
		r.ios.Println(r.ca.end)
	}
	return nil
}
