package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/configstore"
	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/reconcile"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// How a configuration is applied:
//
//  1. The documents are parsed and checked whole; anything wrong with them, and nothing happens.
//  2. What a running machine cannot become without losing its data is refused (fixed).
//  3. Every domain says what it would do. A dry run ends here.
//  4. The documents are written to STATE, where they take the place of the present ones by a rename (package documents). A power cut
//     leaves the one or the other. Staged ones are put beside them, and take their place at the next start; while some are tried, the
//     ones before lie beside them (history.go).
//  5. The new value goes into the cell that every domain watches. Each reads, diffs and does by itself, now and whenever the
//     kernel changes under it; what it does is an event, what goes wrong is in its state.

// checkTimeout bounds the check of expressions about access, which takes less than a second on real
// hardware.
const checkTimeout = time.Minute

// applied is the configuration in force.
type applied struct {
	config  *config.Config // nil before there is one
	applied time.Time
	// where it came from: "STATE", "image", "API (CN=…)", "medium /dev/sdb1:machine.yaml"
	source string
	// as they came, where they still have to be stored: on a machine that runs from memory
	documents []byte
	problem   string    // what is wrong with one that lies there and cannot be used
	trial     time.Time // when the one before comes back; zero: this one is here to stay
	// tried are those that were on trial before this one, and that nobody has confirmed.
	tried []*config.Config
	// trialName is what the caller called the trial; empty: nothing.
	trialName string
	// sameNetwork tells that it asks for the same links, addresses and routes as the one before the
	// trial.
	sameNetwork bool
	// due is when it is put in force: by then the answer to its caller has left the machine.
	due time.Time
}

// configs is where the configurations are kept.
var configs = configstore.Store{Dir: paths.Config}

// outcome is what applying does, or would do.
type outcome struct {
	operations []string
	restarts   []string
	reboot     bool
	install    string    // the disk that the system is installed to
	trial      time.Time // until when it is in force, unless it is confirmed
	warnings   []string
	plan       trialPlan
	config     *config.Config // that was put in force; nil: none was
}

// answerTime is how long a configuration on trial waits before it is put in force, so that the
// answer leaves over the connection that the configuration may cut.
const answerTime = time.Second

// add notes what a domain does.
func (o *outcome) add(domain string, lines []string) {
	for _, l := range lines {
		o.operations = append(o.operations, domain+": "+l)
	}
}

// apply makes the machine what the documents say, or refuses them. The error is config.Problems
// when the documents are at fault.
func (m *machine) apply(ctx context.Context, filename string, r *api.ApplyRequest) (outcome, error) {
	m.applying.Lock()
	defer m.applying.Unlock()

	now, _ := m.config.Get()
	next, text, trial, err := m.judge(ctx, now, filename, r)
	if err != nil {
		return outcome{}, err
	}
	warnings, err := m.refuseUnfit(now.config, next, r.Force)
	if err != nil {
		return outcome{}, err
	}
	if m.medium != "" {
		return m.applyInstall(ctx, now.config, next, text, r.Mode == api.ApplyRequest_MODE_DRY_RUN)
	}
	if err := m.matchable(ctx, next); err != nil {
		return outcome{}, err
	}
	out, err := m.plan(ctx, now.config, next)
	if err != nil {
		return out, err
	}
	out.plan, out.warnings = trial, slices.Concat(warnings, out.warnings, trial.warnings())
	lines, err := m.unseal(ctx, now.config, next, r.Mode == api.ApplyRequest_MODE_DRY_RUN)
	if err != nil {
		return outcome{}, err
	}
	out.add("etcd", lines)
	staged := r.Mode == api.ApplyRequest_MODE_STAGED
	out.reboot = !staged && networkChanges(now.config, next)
	if r.Mode == api.ApplyRequest_MODE_DRY_RUN {
		return out, nil
	}
	out.reboot = out.reboot || r.Mode == api.ApplyRequest_MODE_REBOOT
	if staged || out.reboot {
		return m.keepForStart(ctx, text, out)
	}
	if now.config != nil && len(config.Changes(now.config, next)) == 0 && now.trial.IsZero() && r.Mode != api.ApplyRequest_MODE_TRY && configs.Staged().IsZero() {
		didNothing(ctx) // it is in force already
	}
	return m.putInForce(ctx, now, next, text, r, out)
}

// judge reads the documents that a caller wants in force, and refuses what this machine cannot
// become.
func (m *machine) judge(ctx context.Context, now applied, filename string, r *api.ApplyRequest) (next *config.Config, text []byte, trial trialPlan, err error) {
	filename, text, err = asked(now, filename, r)
	if err != nil {
		return nil, nil, trial, fmt.Errorf("configuration refused, nothing was changed: %w", err)
	}
	next, problems := config.Parse(filename, text)
	if len(problems) > 0 {
		return nil, nil, trial, problems
	}
	if m.medium == "" { // what runs from memory has no data yet that was written for anything
		if err := fixed(now.config, next); err != nil {
			return nil, nil, trial, err
		}
	}
	if err := m.able(next); err != nil {
		return nil, nil, trial, err
	}
	// with a clock that may be wrong, nobody can say what has expired
	if t, _ := m.timeState.Get(); t.Synced {
		if problems := next.CheckTime(time.Now()); len(problems) > 0 {
			return nil, nil, trial, problems
		}
	}
	if err := lockedOut(ctx, next); err != nil {
		return nil, nil, trial, err
	}
	if err := m.readable(ctx, next.Cluster); err != nil {
		return nil, nil, trial, err
	}
	trial = planTrial(m.lasting(now), next, r)
	if err := m.way(now, next, r, trial); err != nil {
		return nil, nil, trial, fmt.Errorf("configuration refused, nothing was changed: %w", err)
	}
	return next, text, trial, nil
}

// lasting is the configuration that would come back from a trial: the one in force or, while that
// is on trial itself, the one before; nil where none can come back.
func (m *machine) lasting(now applied) *config.Config {
	if why, _ := m.noStorage.Get(); why != "" || m.medium != "" {
		return nil // there is nothing to keep it on
	}
	if now.trial.IsZero() {
		return now.config
	}
	text, err := configs.Confirmed()
	if err != nil {
		return now.config
	}
	c, problems := config.Parse("", text)
	if len(problems) > 0 {
		return now.config
	}
	return c
}

// keepForStart puts documents by for the next start, which begins now if the outcome is a reboot.
func (m *machine) keepForStart(ctx context.Context, text []byte, out outcome) (outcome, error) {
	who := caller(ctx)
	if err := configs.Stage(text); err != nil {
		return outcome{}, err
	}
	m.events.add("config", "config", "staged for the next start by "+who)
	if out.reboot {
		return out, m.goDown(powerRequest{to: power.Reboot, why: "to apply a configuration, asked by " + who})
	}
	return out, nil
}

// putInForce stores what was judged and planned, and has all domains follow it. m.applying is held.
func (m *machine) putInForce(ctx context.Context, now applied, next *config.Config, text []byte, r *api.ApplyRequest, out outcome) (outcome, error) {
	// able has seen that the operator allows what it takes
	if why, _ := m.noStorage.Get(); why != "" {
		if err := m.bringStorage(ctx, disk.Config{Wipe: true}); err != nil {
			return outcome{}, fmt.Errorf("configuration refused: there is no disk to keep it on: %w", err)
		}
	}
	err := errors.Join(keepIdentity(m.identity.Load()), moveOwner())
	if err != nil {
		return outcome{}, err
	}
	if out.plan.length > 0 {
		out.trial = time.Now().Add(out.plan.length)
		err = configs.StartTrial(text)
	} else if err = configs.Put(text); err == nil {
		err = configs.DropStaged()
	}
	if err != nil {
		return outcome{}, err
	}
	who := caller(ctx)
	m.events.add("config", "config", "applied by "+who+untried(r, out.plan))
	for _, change := range config.Changes(now.config, next) {
		m.events.add("config", "config", change)
	}
	fresh := applied{config: next, applied: time.Now(), source: "API (" + who + ")", trial: out.trial}
	if out.plan.length > 0 {
		fresh.trialName = r.Trial
		fresh.sameNetwork = now.trial.IsZero() && reflect.DeepEqual(networkConfig(now.config), networkConfig(next))
	}
	if len(out.plan.cuts) > 0 {
		fresh.due = time.Now().Add(answerTime)
	}
	out.config = next
	if !out.trial.IsZero() && !now.trial.IsZero() {
		fresh.tried = append(slices.Clone(now.tried), now.config)
	}
	m.config.Set(fresh)
	m.note(text, who)
	// The caller's next call already meets the machine under its new name, so this part is not left
	// to the loop.
	state, _ := m.networkState.Get()
	m.settling.Lock()
	defer m.settling.Unlock()
	return out, m.openDoor(ctx, next, state)
}

// untried is the end of an event's line where a change that can cut off its caller is not tried
// because the caller did not want it.
func untried(r *api.ApplyRequest, p trialPlan) string {
	if r.NoTrial && len(p.cuts) > 0 {
		return ", without a trial, although it can cut off its caller"
	}
	return ""
}

// asked are the documents that a caller wants in force, and what to call them in messages.
func asked(now applied, filename string, r *api.ApplyRequest) (name string, text []byte, err error) {
	switch {
	case r.Number != 0 && (r.Patch || len(r.Documents) > 0):
		return "", nil, errors.New("documents or a patch, and the number of an earlier configuration: only one can be applied")
	case r.Number != 0:
		e, err := configs.Entry(r.Number)
		return fmt.Sprintf("configuration %d", r.Number), []byte(e.Documents), err
	case r.Patch:
		text, err := patched(now, r.Documents)
		return "patched", text, err // the lines are of what comes of it
	}
	return filename, r.Documents, nil
}

// patched is the present documents with a patch.
func patched(now applied, patch []byte) ([]byte, error) {
	if now.config == nil {
		return nil, errors.New("patch: there is no configuration yet that it could change; apply one")
	}
	present, err := os.ReadFile(configs.Current())
	if errors.Is(err, fs.ErrNotExist) { // it is the image's
		present, err = config.Marshal(now.config), nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the present one: %w", err)
	}
	return config.Merge(present, patch)
}

// readable refuses expressions about access that the API server could not read: it would not start
// with them. Only Kubernetes can judge them, so the orchestrator is asked, as the API server's
// user.
func (m *machine) readable(ctx context.Context, c *config.Cluster) error {
	if c == nil {
		return nil
	}
	check := access(c).Check(c.Spec.Networks.Domain)
	if check == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	text, err := m.orchestrator(ctx, paths.UserAPI, "check-access", check)
	if failed := (*supervise.ExitError)(nil); errors.As(err, &failed) && failed.Exit.Code == 1 {
		return fmt.Errorf("configuration refused, nothing was changed: %s", credentials.InDocument(string(text)))
	}
	return err
}

// matchable refuses an expression about disks that nobody could evaluate, although an installed
// machine does not ask it.
func (m *machine) matchable(ctx context.Context, next *config.Config) error {
	if next.Machine.Spec.Install == nil || next.Machine.Spec.Install.Disk.Match == "" {
		return nil
	}
	_, err := m.matchDisks(ctx, next.Machine.Spec.Install.Disk.Match, nil)
	if e := (*expressionError)(nil); errors.As(err, &e) {
		return e.problem(next)
	}
	return err
}

// lockedOut refuses a configuration that does not trust who applies it: nobody could take it back.
func lockedOut(ctx context.Context, next *config.Config) error {
	md, _ := metadata.FromIncomingContext(ctx)
	own := strings.Join(md.Get(apid.MetadataIssuer), "")
	if own == "" { // it is not an operator's call
		return nil
	}
	list, err := operators(next)
	if err != nil {
		return err
	}
	// the client CA counts only beside operators
	if len(list) > 0 && next.Cluster != nil && !next.Cluster.Spec.PKI.Client.Cert.IsZero() {
		own := next.Cluster.Spec.PKI
		list = append(slices.Clone(list), trusted(own.Client.Cert, own.Accepted.Client)...)
	}
	if known, err := knows(list, own); known || err != nil {
		return err
	}
	return errors.New("configuration refused, nothing was changed: the authority of your own certificate is neither in Machine.spec.trust.operatorCAs nor Cluster.spec.pki.client, so this machine would not know you any more; add it, or apply with a certificate of one that is")
}

// fixed refuses a change of what a cluster's data was written for. The hint is the same for all:
// only a reset forgets.
func fixed(before, next *config.Config) error {
	if before == nil || before.Cluster == nil {
		return nil
	}
	changed := func(what string, is, would any) error {
		return fmt.Errorf("configuration refused, nothing was changed: %s: cannot change from %v to %v on a machine that is part of a cluster; reset it first (orlopctl reset --wipe all)", what, is, would)
	}
	b, n := before.Cluster, next.Cluster
	switch {
	case n == nil:
		return changed("Cluster", b.Metadata.Name, "none")
	case b.Metadata.Name != n.Metadata.Name:
		return changed("Cluster.metadata.name", b.Metadata.Name, n.Metadata.Name)
	case before.Machine.Metadata.Name != next.Machine.Metadata.Name:
		return changed("Machine.metadata.name", before.Machine.Metadata.Name, next.Machine.Metadata.Name)
	case before.Machine.Spec.Role != next.Machine.Spec.Role:
		return changed("Machine.spec.role", before.Machine.Spec.Role, next.Machine.Spec.Role)
	case !slices.Equal(b.Spec.Networks.Pods, n.Spec.Networks.Pods):
		return changed("Cluster.spec.networks.pods", b.Spec.Networks.Pods, n.Spec.Networks.Pods)
	case !slices.Equal(b.Spec.Networks.Services, n.Spec.Networks.Services):
		return changed("Cluster.spec.networks.services", b.Spec.Networks.Services, n.Spec.Networks.Services)
	case b.Spec.Networks.Domain != n.Spec.Networks.Domain:
		return changed("Cluster.spec.networks.domain", b.Spec.Networks.Domain, n.Spec.Networks.Domain)
	}
	was, is := b.Spec.PKI, n.Spec.PKI
	return errors.Join(
		seals(b.Spec, n.Spec),
		follows("kubernetes", was.Kubernetes.Cert, is.Kubernetes.Cert, was.Accepted.Kubernetes, is.Accepted.Kubernetes),
		follows("etcd", was.Etcd.Cert, is.Etcd.Cert, was.Accepted.Etcd, is.Accepted.Etcd),
		follows("machine", was.Machine.Cert, is.Machine.Cert, was.Accepted.Machine, is.Accepted.Machine),
	)
}

// seals refuses to seal Secrets by a key that was not accepted before, and so may not be by the
// other machines, or not to read any more what the present one has sealed.
func seals(was, is config.ClusterSpec) error {
	own, next := was.SecretsEncryptionKey, is.SecretsEncryptionKey
	if own.IsZero() || own.Equal(next.Secret) || hasKey(was.AcceptedEncryptionKeys, next) && hasKey(is.AcceptedEncryptionKeys, own) {
		return nil
	}
	return errors.New("configuration refused, nothing was changed: Cluster.spec.secretsEncryptionKey: cannot change at once to a key that was not accepted before, or from one that is not accepted any more: Secrets could not be read; " +
		"`orlopctl trust rotate-key` does it step by step (Cluster.spec.acceptedEncryptionKeys)")
}

// otherKeys tells whether a machine of a cluster would have other keys of Secrets, or the same in
// another order.
func otherKeys(before, next *config.Config) bool {
	return before != nil && before.Cluster != nil && next.Cluster != nil &&
		!slices.EqualFunc(before.Cluster.Spec.EncryptionKeys(), next.Cluster.Spec.EncryptionKeys(), func(a, b config.EncryptionKey) bool { return a.Equal(b.Secret) })
}

// withPresentKeys is a configuration of earlier with the keys of Secrets that the present one has:
// the data are of now. One that cannot be read stays as it is, and is told of by who uses it.
func withPresentKeys(earlier, present []byte) ([]byte, error) {
	then, problems := config.Parse("", earlier)
	now, others := config.Parse("", present)
	if len(problems)+len(others) > 0 || !otherKeys(then, now) {
		return earlier, nil
	}
	var accepted []string
	for _, k := range now.Cluster.Spec.AcceptedEncryptionKeys {
		accepted = append(accepted, k.Reveal())
	}
	keys, err := json.Marshal(map[string]any{"kind": "Cluster", "spec": map[string]any{
		"secretsEncryptionKey": now.Cluster.Spec.SecretsEncryptionKey.Reveal(), "acceptedEncryptionKeys": accepted,
	}})
	if err != nil {
		return nil, err
	}
	return config.Merge(earlier, keys)
}

func hasKey(list []config.EncryptionKey, k config.EncryptionKey) bool {
	return slices.ContainsFunc(list, func(o config.EncryptionKey) bool { return o.Equal(k.Secret) })
}

// unseal has all Secrets written again by the key that seals, before the machine lets go of another
// one, and returns what was done, or would be with dry. What cannot be done is a refusal: who has
// let go of a key reads nothing any more that is sealed by it.
func (m *machine) unseal(ctx context.Context, before, next *config.Config, dry bool) ([]string, error) {
	gone := letGo(before, next)
	if len(gone) == 0 {
		return nil, nil
	}
	refused := func(err error) ([]string, error) {
		return nil, fmt.Errorf("configuration refused, nothing was changed but perhaps which key Secrets are sealed by: Cluster.spec.acceptedEncryptionKeys: cannot let go of %s: %w", strings.Join(gone, ", "), err)
	}
	// What seals by another key than the configuration says would go on after all is sealed, and
	// what seals is told by a file that is written before it starts.
	waits, err := m.notYet(before)
	if err != nil {
		return refused(err)
	}
	if slices.Contains(waits, serviceKubeAPI) {
		return refused(fmt.Errorf("%s does not run with the present configuration yet; wait for that (`orlopctl health`)", serviceKubeAPI))
	}
	ctx, cancel := m.within(ctx, dataTime)
	defer cancel()
	done, err := ask[nodespec.ReencryptResult](ctx, m, paths.UserAPI, "reseal-secrets", nodespec.ReencryptRequest{Count: dry})
	if err != nil {
		return refused(err)
	}
	return []string{fmt.Sprintf("let go of the key of Secrets %s: %d of %d Secrets were sealed by another than the present one, and are written again", strings.Join(gone, ", "), done.Reencrypted, done.Secrets)}, nil
}

// notYet are the services that do not run with a configuration yet, by name: those that have still
// to start, or to end, for it.
func (m *machine) notYet(c *config.Config) ([]string, error) {
	want, err := m.wantedServices(c)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, change := range supervise.Diff(m.services.Services(), want) {
		names = append(names, change.Service)
	}
	list, _ := m.services.Status().Get()
	for _, s := range list {
		if s.State != supervise.Running && !slices.Contains(names, s.Name) {
			names = append(names, s.Name)
		}
	}
	return names, nil
}

// letGo are the keys of Secrets, by name, that a machine has and would not have.
func letGo(before, next *config.Config) (gone []string) {
	if before == nil || before.Cluster == nil || next.Cluster == nil {
		return nil // a machine without data; what takes a cluster from one that has some is refused
	}
	for _, k := range before.Cluster.Spec.EncryptionKeys() {
		if !hasKey(next.Cluster.Spec.EncryptionKeys(), k) {
			gone = append(gone, k.Name())
		}
	}
	return gone
}

// follows refuses an authority that nobody in the cluster believes yet, and one after which nobody
// is believed who has a certificate of the one before. That one may have expired: then nobody
// believes it in any case.
func follows(name string, was, is config.Certificate, accepted, still []config.Certificate) error {
	has := func(list []config.Certificate, c config.Certificate) bool {
		return slices.ContainsFunc(list, func(o config.Certificate) bool { return o.PEM() == c.PEM() })
	}
	if was.PEM() == is.PEM() || was.IsZero() || time.Now().After(was.X509().NotAfter) || has(accepted, is) && has(still, was) {
		return nil
	}
	return fmt.Errorf("configuration refused, nothing was changed: Cluster.spec.pki.%[1]s: cannot change at once to an authority that was not accepted before, or from one that is not accepted any more; "+
		"`orlopctl trust rotate-ca` does it step by step (Cluster.spec.pki.accepted.%[1]s)", name)
}

// able refuses a configuration that this machine, as it is now, could not run.
func (m *machine) able(next *config.Config) error {
	if why, _ := m.noStorage.Get(); why != "" && m.medium == "" && !next.Machine.Spec.Disk.WipeForeign {
		return fmt.Errorf("configuration refused, nothing was changed: there is no disk to keep it on: %s", why)
	}
	if next.Cluster == nil {
		return nil
	}
	if m.facts.Memory < minMemory {
		return fmt.Errorf("configuration refused, nothing was changed: memory: %d MiB are too little for Kubernetes; give the machine at least %d MiB", m.facts.Memory>>20, minMemory>>20)
	}
	if err := unreservable(next.Machine.Spec.Reserved, m.facts); err != nil {
		return fmt.Errorf("configuration refused, nothing was changed: %w", err)
	}
	state, _ := m.networkState.Get()
	if err := unroutable(next, nodeAddresses(next, state)); err != nil {
		return fmt.Errorf("configuration refused, nothing was changed: %w", err)
	}
	if worker(next) {
		return nil // it holds no authorities
	}
	if _, err := authorities(next.Cluster); err != nil {
		return fmt.Errorf("configuration refused, nothing was changed: %w", err)
	}
	return nil
}

// unreservable refuses to keep more for the system than leaves something for pods: the kubelet does
// not start with it.
func unreservable(r config.Reserved, has host.Facts) error {
	if most := has.Memory / 2; int64(r.Memory) > most {
		return fmt.Errorf("Machine.spec.reserved.memory: %s are more than half of the machine's %d MiB; reserve less", r.Memory, has.Memory>>20)
	}
	if most := int64(has.CPUs) * 1000; int64(r.CPU) >= most {
		return fmt.Errorf("Machine.spec.reserved.cpu: %s are all of the machine's %d processors; reserve less", r.CPU, has.CPUs)
	}
	return nil
}

// unroutable refuses plain routes to pods by IPv6 when the machine has, and will have, no address
// by which others could route to them: they would reach none of its pods any more, by IPv4 neither.
// have are its addresses now; without any, nothing is known yet.
func unroutable(next *config.Config, have []netip.Addr) error {
	networks := next.Cluster.Spec.Networks
	six := func(p netip.Prefix) bool { return p.Addr().Is6() && p.Addr().IsGlobalUnicast() }
	given := func(l config.Link) bool { return slices.ContainsFunc(l.Addresses, six) }
	if networks.Encapsulation != config.EncapsulationNone || !slices.ContainsFunc(networks.Pods, six) || len(have) == 0 ||
		slices.ContainsFunc(have, netip.Addr.Is6) || slices.ContainsFunc(next.Network.Spec.Links, given) {
		return nil
	}
	return errors.New("Cluster.spec.networks.encapsulation: none has the other machines route to this one's pods by its own addresses, and it has none of IPv6, as pods do; " +
		"give it one in Network.spec.links (addresses), or keep wireguard or vxlan")
}

// plan asks every domain what it would do for the next configuration.
func (m *machine) plan(ctx context.Context, before, next *config.Config) (outcome, error) {
	var out outcome
	out.add("config", config.Changes(before, next))
	if why, _ := m.noStorage.Get(); why != "" {
		lines, err := storageDryRun(ctx)
		if err != nil {
			return outcome{}, fmt.Errorf("configuration refused, nothing was changed: there is no disk to keep it on: disk: %w", err)
		}
		out.add("disk", lines)
	}
	host, err := m.hostDryRun(ctx, next)
	if err != nil {
		return outcome{}, err
	}
	out.add("host", host)
	if left, err := m.kernel.UnrestorableSysctls(m.hostConfig(next)); err != nil {
		return outcome{}, err
	} else if len(left) > 0 {
		out.warnings = append(out.warnings, leftover(left))
	}
	lines, err := m.network.DryRun(networkConfig(next))
	if err != nil {
		return outcome{}, fmt.Errorf("network: cannot plan: %w", err)
	}
	out.add("network", lines)
	out.add("firewall", firewallDryRun(before, next))
	services, err := m.wantedServices(next)
	if err != nil {
		return outcome{}, err
	}
	for _, change := range supervise.Diff(m.services.Services(), services) {
		out.add("services", []string{change.String()})
		if change.Kind == "restart" {
			out.restarts = append(out.restarts, change.Service)
		}
	}
	return out, nil
}

// networkChanges says whether something else connects the pods with the next configuration. What
// pods hang on cannot be taken from under them: it takes a start of the machine, which leaves
// nothing of the one before.
func networkChanges(before, next *config.Config) bool {
	return before != nil && before.Cluster != nil && next.Cluster != nil &&
		before.Cluster.Spec.HasExternal(config.PartNetwork) != next.Cluster.Spec.HasExternal(config.PartNetwork)
}

// storageDryRun says what would be done to the disk when the operator allows to wipe what is in the
// way.
func storageDryRun(ctx context.Context) ([]string, error) {
	have, err := disk.Read(ctx, nil)
	if err != nil {
		return nil, err
	}
	want, err := disk.Plan(disk.Config{Wipe: true}, have)
	if err != nil {
		return nil, err
	}
	return reconcile.Print(disk.Diff(have, want, nil)), nil
}

// load reads the configuration that the machine has: the one on STATE, else the one in the image,
// else none. A stored configuration that cannot be read is an error and not the same as none: the
// machine must not become somebody else's.
func load() (applied, string, error) {
	for _, place := range []struct{ file, source string }{{configs.Current(), "STATE"}, {paths.EmbeddedConfig, "image"}} {
		from := place.file
		text, err := os.ReadFile(from)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return applied{}, from, fmt.Errorf("configuration: cannot read: %w", err)
		}
		c, problems := config.Parse(from, text)
		if len(problems) > 0 {
			return applied{}, from, problems
		}
		info, err := os.Stat(from)
		if err != nil {
			return applied{}, from, fmt.Errorf("configuration: %w", err)
		}
		return applied{config: c, applied: info.ModTime(), source: place.source, documents: text}, from, nil
	}
	return applied{}, "", nil
}
