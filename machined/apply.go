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
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/reconcile"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// How a configuration is applied:
//
//  1. The documents are parsed and checked as a whole; a problem rejects all of them.
//  2. Changes that would lose the data of a running machine are rejected (checkFixed).
//  3. Every domain (an area of the machine such as disk, network or host) lists its operations. A
//     dry run ends here.
//  4. The documents are written to STATE and replace the present documents by a rename (package
//     configstore). After a power cut either the old or the new documents are complete. Staged
//     documents are stored beside them and replace them at the next boot; during a trial, the
//     previous documents are stored beside them (history.go).
//  5. The configuration cell (machine.config), a variable that every domain watches, gets the new
//     value. Each domain reads its actual state, computes the difference and performs its
//     operations, now and whenever the kernel's state changes. It reports each operation as an
//     event, and a failure in its topic.

// checkTimeout bounds the check of expressions by the orchestrator (checkAccess, matchDisks), which
// takes less than a second on real hardware.
const checkTimeout = time.Minute

// applied is the active configuration.
type applied struct {
	config  *config.Config // nil if there is none
	applied time.Time
	// source: "STATE", "image", "API (CN=…)", "medium /dev/sdb1:machine.yaml"
	source string
	// original documents from STATE, the image or a medium; nil after an apply over the API
	documents []byte
	problem   string // why the stored configuration is unusable
	// deadline of the trial, at which the previous configuration becomes active again; zero if this
	// configuration is not on trial
	trial time.Time
	// tried are the earlier configurations of the same trial, which were not confirmed.
	tried []*config.Config
	// trialName is the caller's name for the trial; it can be empty.
	trialName string
	// sameNetwork reports that links, addresses and routes are unchanged from the configuration
	// before the trial.
	sameNetwork bool
	// due is the time at which this configuration becomes active: by then the caller has received
	// the answer.
	due time.Time
}

// configs is the store of the configurations.
var configs = configstore.Store{Dir: paths.Config}

// outcome is the result of an apply or a dry run.
type outcome struct {
	operations []string
	restarts   []string
	reboot     bool
	install    string    // disk of the installation
	trial      time.Time // end of the trial; zero without a trial
	warnings   []string
	// why there is a trial, or not
	plan   trialPlan
	config *config.Config // activated configuration; nil if none
}

// activationDelay is the delay before a configuration on trial becomes active, so that the answer
// is sent over the connection that the configuration may cut.
const activationDelay = time.Second

// add adds the operations of a domain.
func (o *outcome) add(domain string, lines []string) {
	for _, l := range lines {
		o.operations = append(o.operations, domain+": "+l)
	}
}

// apply converges the machine to the documents or rejects them. The error is config.Problems if the
// documents have problems.
func (m *machine) apply(ctx context.Context, filename string, r *api.ApplyRequest) (outcome, error) {
	m.applyMu.Lock()
	defer m.applyMu.Unlock()

	now, _ := m.config.Get()
	next, text, trial, err := m.checkRequest(ctx, now, filename, r)
	if err != nil {
		return outcome{}, err
	}
	warnings, err := m.checkHardware(now.config, next, r.Force)
	if err != nil {
		return outcome{}, err
	}
	if m.bootMedium != "" {
		return m.applyInstall(ctx, now.config, next, text, r.Mode == api.ApplyRequest_MODE_DRY_RUN)
	}
	if err := m.checkDiskMatch(ctx, next); err != nil {
		return outcome{}, err
	}
	out, err := m.plan(ctx, now.config, next)
	if err != nil {
		return out, err
	}
	out.plan, out.warnings = trial, slices.Concat(warnings, out.warnings, trial.warnings())
	lines, err := m.reencryptSecrets(ctx, now.config, next, r.Mode == api.ApplyRequest_MODE_DRY_RUN)
	if err != nil {
		return outcome{}, err
	}
	out.add("etcd", lines)
	staged := r.Mode == api.ApplyRequest_MODE_STAGED
	// another pod network takes a reboot
	out.reboot = !staged && networkChanges(now.config, next)
	if r.Mode == api.ApplyRequest_MODE_DRY_RUN {
		return out, nil
	}
	out.reboot = out.reboot || r.Mode == api.ApplyRequest_MODE_REBOOT
	if staged || out.reboot {
		return m.stageForBoot(ctx, text, out)
	}
	if now.config != nil && len(config.Changes(now.config, next)) == 0 && now.trial.IsZero() && r.Mode != api.ApplyRequest_MODE_TRY && configs.Staged().IsZero() {
		// recorded as a call without a change, but the text is stored: it can differ in comments
		setUnchanged(ctx)
	}
	return m.activate(ctx, now, next, text, r, out)
}

// checkRequest reads the documents of a request and rejects a configuration that this machine
// cannot use.
func (m *machine) checkRequest(ctx context.Context, now applied, filename string, r *api.ApplyRequest) (next *config.Config, text []byte, trial trialPlan, err error) {
	filename, text, err = requested(now, filename, r)
	if err != nil {
		return nil, nil, trial, fmt.Errorf("configuration refused, nothing was changed: %w", err)
	}
	next, problems := config.Parse(filename, text)
	if len(problems) > 0 {
		return nil, nil, trial, problems
	}
	if m.bootMedium == "" { // a machine that runs from memory has no cluster data
		if err := checkFixed(now.config, next); err != nil {
			return nil, nil, trial, err
		}
	}
	if err := m.checkMachine(next); err != nil {
		return nil, nil, trial, err
	}
	// with a clock that may be wrong, expiry is unknown
	if t, _ := m.timeState.Get(); t.Synced {
		if problems := next.CheckTime(time.Now()); len(problems) > 0 {
			return nil, nil, trial, problems
		}
	}
	if err := checkLockout(ctx, next); err != nil {
		return nil, nil, trial, err
	}
	if err := m.checkAccess(ctx, next.Cluster); err != nil {
		return nil, nil, trial, err
	}
	trial = planTrial(m.fallback(now), next, r)
	if err := m.checkMode(now, next, r, trial); err != nil {
		return nil, nil, trial, fmt.Errorf("configuration refused, nothing was changed: %w", err)
	}
	return next, text, trial, nil
}

// fallback returns the configuration to which a trial would revert: the active configuration or,
// during a trial, the previous configuration; nil if there is none.
func (m *machine) fallback(now applied) *config.Config {
	if why, _ := m.storageProblem.Get(); why != "" || m.bootMedium != "" {
		return nil // without storage there is no trial
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

// stageForBoot stores documents for the next boot, which follows at once if the outcome is a
// reboot.
func (m *machine) stageForBoot(ctx context.Context, text []byte, out outcome) (outcome, error) {
	by := caller(ctx)
	if err := configs.Stage(text); err != nil {
		return outcome{}, err
	}
	m.events.add("config", "config", "staged for the next boot by "+by)
	if out.reboot {
		return out, m.shutDown(powerRequest{to: power.Reboot, why: "to apply a configuration, asked by " + by})
	}
	return out, nil
}

// activate stores the checked documents and sets the configuration cell. The caller holds
// m.applyMu.
func (m *machine) activate(ctx context.Context, now applied, next *config.Config, text []byte, r *api.ApplyRequest, out outcome) (outcome, error) {
	// checkMachine has checked that the configuration allows to wipe the disk
	if why, _ := m.storageProblem.Get(); why != "" {
		if err := m.bringStorage(ctx, disk.Config{Wipe: true}); err != nil {
			return outcome{}, fmt.Errorf("configuration refused: no disk to store it on: %w", err)
		}
	}
	// The machine's key and the operator CA of a pairing may be in memory only until now; store
	// them.
	err := errors.Join(persistIdentity(m.identity.Load()), ownership.MoveOwner())
	if err != nil {
		return outcome{}, err
	}
	if out.plan.duration > 0 {
		out.trial = time.Now().Add(out.plan.duration)
		err = configs.StartTrial(text)
	} else if err = configs.Put(text); err == nil {
		err = configs.DropStaged()
	}
	if err != nil {
		return outcome{}, err
	}
	by := caller(ctx)
	m.events.add("config", "config", "applied by "+by+withoutTrial(r, out.plan))
	for _, change := range config.Changes(now.config, next) {
		m.events.add("config", "config", change)
	}
	fresh := applied{config: next, applied: time.Now(), source: "API (" + by + ")", trial: out.trial}
	if out.plan.duration > 0 {
		fresh.trialName = r.TrialName
		fresh.sameNetwork = now.trial.IsZero() && reflect.DeepEqual(networkConfig(now.config), networkConfig(next))
	}
	if len(out.plan.cutOffs) > 0 {
		fresh.due = time.Now().Add(activationDelay)
	}
	out.config = next
	if !out.trial.IsZero() && !now.trial.IsZero() {
		fresh.tried = append(slices.Clone(now.tried), now.config)
	}
	m.config.Set(fresh)
	m.addToHistory(text, by)
	// configureAPI runs here and not only in the reconciliation, so that the caller's next call
	// already reaches the machine under its new name.
	state, _ := m.networkState.Get()
	m.reconcileMu.Lock()
	defer m.reconcileMu.Unlock()
	return out, m.configureAPI(ctx, next, state)
}

// withoutTrial returns the end of the text of an event. It is not empty if a change can cut off its
// caller and the caller requested no trial.
func withoutTrial(r *api.ApplyRequest, p trialPlan) string {
	if r.NoTrial && len(p.cutOffs) > 0 {
		return ", without a trial, although it can cut off its caller"
	}
	return ""
}

// requested returns the documents of a request, and their name in messages.
func requested(now applied, filename string, r *api.ApplyRequest) (name string, text []byte, err error) {
	switch {
	case r.Number != 0 && (r.Patch || len(r.Documents) > 0):
		return "", nil, errors.New("cannot apply documents or a patch together with the number of an earlier configuration")
	case r.Number != 0:
		e, err := configs.Entry(r.Number)
		return fmt.Sprintf("configuration %d", r.Number), []byte(e.Documents), err
	case r.Patch:
		text, err := patched(now, r.Documents)
		return "patched", text, err // line numbers refer to the result
	}
	return filename, r.Documents, nil
}

// patched returns the present documents with a patch applied.
func patched(now applied, patch []byte) ([]byte, error) {
	if now.config == nil {
		return nil, errors.New("patch: no configuration to change; apply one")
	}
	present, err := os.ReadFile(configs.Current())
	if errors.Is(err, fs.ErrNotExist) { // the active configuration is part of the image
		present, err = config.Marshal(now.config), nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the present configuration: %w", err)
	}
	return config.Merge(present, patch)
}

// checkAccess rejects expressions for authentication and authorization (Cluster document) that the
// API server could not compile: it would not start. Only Kubernetes can check them, so the
// orchestrator does it, as the user of the API server.
func (m *machine) checkAccess(ctx context.Context, c *config.Cluster) error {
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

// checkDiskMatch rejects an expression of the disk selector (Machine.spec.install.disk.match) that
// cannot be evaluated, although an installed machine does not use it.
func (m *machine) checkDiskMatch(ctx context.Context, next *config.Config) error {
	if next.Machine.Spec.Install == nil || next.Machine.Spec.Install.Disk.Match == "" {
		return nil
	}
	_, err := m.matchDisks(ctx, next.Machine.Spec.Install.Disk.Match, nil)
	if e := (*expressionError)(nil); errors.As(err, &e) {
		return e.problem(next)
	}
	return err
}

// checkLockout rejects a configuration that does not trust the caller's CA: the caller could not
// revert it.
func checkLockout(ctx context.Context, next *config.Config) error {
	md, _ := metadata.FromIncomingContext(ctx)
	own := strings.Join(md.Get(apid.MetadataIssuer), "")
	if own == "" { // the caller is not an operator
		return nil
	}
	list, err := ownership.Operators(next)
	if err != nil {
		return err
	}
	// the client CA is trusted only if operator CAs exist; in this block own is the PKI of next
	if len(list) > 0 && next.Cluster != nil && !next.Cluster.Spec.PKI.Client.Cert.IsZero() {
		own := next.Cluster.Spec.PKI
		list = append(slices.Clone(list), trusted(own.Client.Cert, own.Accepted.Client)...)
	}
	if known, err := ownership.ContainsCA(list, own); known || err != nil {
		return err
	}
	return errors.New("configuration refused, nothing was changed: the CA of your certificate is neither in Machine.spec.trust.operatorCAs nor Cluster.spec.pki.client, so this machine would lock you out; add it, or apply with a certificate of a listed CA")
}

// checkFixed rejects a change of a value on which the cluster's data depends. All hints are the
// same: only a reset drops the data.
func checkFixed(before, next *config.Config) error {
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
		checkEncryptionKeys(b.Spec, n.Spec),
		checkCAChange("kubernetes", was.Kubernetes.Cert, is.Kubernetes.Cert, was.Accepted.Kubernetes, is.Accepted.Kubernetes),
		checkCAChange("etcd", was.Etcd.Cert, is.Etcd.Cert, was.Accepted.Etcd, is.Accepted.Etcd),
		checkCAChange("machine", was.Machine.Cert, is.Machine.Cert, was.Accepted.Machine, is.Accepted.Machine),
	)
}

// checkEncryptionKeys rejects a new encryption key that the previous configuration did not accept:
// other machines may not accept it either. It also rejects a configuration that does not accept the
// previous key any more, with which Secrets are encrypted. was and is are the previous and the next
// Cluster document, own and next their encryption keys.
func checkEncryptionKeys(was, is config.ClusterSpec) error {
	own, next := was.SecretsEncryptionKey, is.SecretsEncryptionKey
	if own.IsZero() || own.Equal(next.Secret) || hasKey(was.AcceptedEncryptionKeys, next) && hasKey(is.AcceptedEncryptionKeys, own) {
		return nil
	}
	return errors.New("configuration refused, nothing was changed: Cluster.spec.secretsEncryptionKey: cannot change in one step to a key that was not accepted before, or from a key that is not accepted afterwards: Secrets would be unreadable; " +
		"`orlopctl trust rotate-key` does it step by step (Cluster.spec.acceptedEncryptionKeys)")
}

// otherKeys reports whether the encryption keys of a cluster machine would change, or their order.
func otherKeys(before, next *config.Config) bool {
	return before != nil && before.Cluster != nil && next.Cluster != nil &&
		!slices.EqualFunc(before.Cluster.Spec.EncryptionKeys(), next.Cluster.Spec.EncryptionKeys(), func(a, b config.EncryptionKey) bool { return a.Equal(b.Secret) })
}

// withPresentKeys returns an earlier configuration with the present encryption keys, because the
// stored Secrets are encrypted with the present keys. An unreadable configuration is returned
// unchanged; the caller parses it and reports the problem.
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

// reencryptTimeout bounds the rewrite of all Secrets, for which etcd reads and writes its data.
const reencryptTimeout = savepointTimeout

// reencryptSecrets rewrites all Secrets with the current encryption key before an old key is
// dropped. It returns the operations, or with dry the planned operations. An error rejects the
// configuration: a machine without the old key cannot read the Secrets that are encrypted with it.
func (m *machine) reencryptSecrets(ctx context.Context, before, next *config.Config, dry bool) ([]string, error) {
	dropped := droppedKeys(before, next)
	if len(dropped) == 0 {
		return nil, nil
	}
	refused := func(err error) ([]string, error) {
		return nil, fmt.Errorf("configuration refused, only the encryption of Secrets may have changed: Cluster.spec.acceptedEncryptionKeys: cannot drop %s: %w", strings.Join(dropped, ", "), err)
	}
	// An API server that still encrypts with a former key would continue to do so after the
	// rewrite. A running API server without a pending restart has the configured key, because the
	// file with the key is written before it starts.
	waits, err := m.servicesWaiting(before)
	if err != nil {
		return refused(err)
	}
	if slices.Contains(waits, serviceKubeAPI) {
		return refused(fmt.Errorf("%s does not run with the present configuration yet; wait for that (`orlopctl health`)", serviceKubeAPI))
	}
	ctx, cancel := limits.Within(ctx, m.runCtx, reencryptTimeout)
	defer cancel()
	done, err := runCommand[nodespec.ReencryptResult](ctx, m, paths.UserAPI, "reencrypt-secrets", nodespec.ReencryptRequest{Count: dry})
	if err != nil {
		return refused(err)
	}
	return []string{fmt.Sprintf("drop the encryption key %s: %d of %d Secrets were encrypted with another key than the present one, and are rewritten", strings.Join(dropped, ", "), done.Reencrypted, done.Secrets)}, nil
}

// servicesWaiting returns the names of services that do not run with a configuration yet: they have
// still to start or stop.
func (m *machine) servicesWaiting(c *config.Config) ([]string, error) {
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

// droppedKeys returns the names of the encryption keys that the next configuration drops.
func droppedKeys(before, next *config.Config) (dropped []string) {
	if before == nil || before.Cluster == nil || next.Cluster == nil {
		return nil // a machine without data; checkFixed rejects the removal of a cluster
	}
	for _, k := range before.Cluster.Spec.EncryptionKeys() {
		if !hasKey(next.Cluster.Spec.EncryptionKeys(), k) {
			dropped = append(dropped, k.Name())
		}
	}
	return dropped
}

// checkCAChange rejects a new CA that the previous configuration did not accept, and a CA change
// after which certificates of the former CA are not accepted. accepted and still are the accepted
// CAs of the previous and of the next configuration. If the former CA has expired, its certificates
// are invalid in any case.
func checkCAChange(name string, was, is config.Certificate, accepted, still []config.Certificate) error {
	has := func(list []config.Certificate, c config.Certificate) bool {
		return slices.ContainsFunc(list, func(o config.Certificate) bool { return o.PEM() == c.PEM() })
	}
	if was.PEM() == is.PEM() || was.IsZero() || time.Now().After(was.X509().NotAfter) || has(accepted, is) && has(still, was) {
		return nil
	}
	return fmt.Errorf("configuration refused, nothing was changed: Cluster.spec.pki.%[1]s: cannot change in one step to a CA that was not accepted before, or from a CA that is not accepted afterwards; "+
		"`orlopctl trust rotate-ca` does it step by step (Cluster.spec.pki.accepted.%[1]s)", name)
}

// checkMachine rejects a configuration that this machine cannot run at present.
func (m *machine) checkMachine(next *config.Config) error {
	if why, _ := m.storageProblem.Get(); why != "" && m.bootMedium == "" && !next.Machine.Spec.Disk.WipeForeign {
		return fmt.Errorf("configuration refused, nothing was changed: no disk to store it on: %s", why)
	}
	if next.Cluster == nil {
		return nil
	}
	if m.facts.Memory < minMemory {
		return fmt.Errorf("configuration refused, nothing was changed: memory: %d MiB are too little for Kubernetes; give the machine at least %d MiB", m.facts.Memory>>20, minMemory>>20)
	}
	if err := checkReserved(next.Machine.Spec.Reserved, m.facts); err != nil {
		return fmt.Errorf("configuration refused, nothing was changed: %w", err)
	}
	state, _ := m.networkState.Get()
	if err := checkPodRoutes(next, nodeAddresses(next, state)); err != nil {
		return fmt.Errorf("configuration refused, nothing was changed: %w", err)
	}
	if isWorker(next) {
		return nil // it holds no CA keys
	}
	if _, err := authorities(next.Cluster); err != nil {
		return fmt.Errorf("configuration refused, nothing was changed: %w", err)
	}
	return nil
}

// checkReserved rejects reservations for the system that leave nothing for pods: the kubelet would
// not start.
func checkReserved(r config.Reserved, has host.Facts) error {
	if most := has.Memory / 2; int64(r.Memory) > most {
		return fmt.Errorf("Machine.spec.reserved.memory: %s are more than half of the machine's %d MiB; reserve less", r.Memory, has.Memory>>20)
	}
	if most := int64(has.CPUs) * 1000; int64(r.CPU) >= most {
		return fmt.Errorf("Machine.spec.reserved.cpu: %s are all of the machine's %d processors; reserve less", r.CPU, has.CPUs)
	}
	return nil
}

// checkPodRoutes rejects unencapsulated IPv6 pod routes if the machine has no IPv6 address that can
// be their next hop, neither in have, its present addresses, nor in next. The other machines would
// then reach its pods neither by IPv6 nor by IPv4. Without any present address, the check is
// skipped.
func checkPodRoutes(next *config.Config, have []netip.Addr) error {
	networks := next.Cluster.Spec.Networks
	six := func(p netip.Prefix) bool { return p.Addr().Is6() && p.Addr().IsGlobalUnicast() }
	configured := func(l config.Link) bool { return slices.ContainsFunc(l.Addresses, six) }
	if networks.Encapsulation != config.EncapsulationNone || !slices.ContainsFunc(networks.Pods, six) || len(have) == 0 ||
		slices.ContainsFunc(have, netip.Addr.Is6) || slices.ContainsFunc(next.Network.Spec.Links, configured) {
		return nil
	}
	return errors.New("Cluster.spec.networks.encapsulation: with none, other machines route to this machine's pods by its own addresses, and it has no IPv6 address for its IPv6 pods; " +
		"add one in Network.spec.links (addresses), or use wireguard or vxlan")
}

// plan returns the operations of every domain for the next configuration.
func (m *machine) plan(ctx context.Context, before, next *config.Config) (outcome, error) {
	var out outcome
	out.add("config", config.Changes(before, next))
	if why, _ := m.storageProblem.Get(); why != "" {
		lines, err := storageDryRun(ctx)
		if err != nil {
			return outcome{}, fmt.Errorf("configuration refused, nothing was changed: no disk to store it on: disk: %w", err)
		}
		out.add("disk", lines)
	}
	host, err := m.hostDryRun(ctx, next)
	if err != nil {
		return outcome{}, err
	}
	out.add("host", host)
	if left, err := m.kernel.LeftoverModules(m.hostConfig(next)); err != nil {
		return outcome{}, err
	} else if len(left) > 0 {
		out.warnings = append(out.warnings, staleModules(left))
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

// networkChanges reports whether the pod network is replaced by an external network, or the
// reverse. The network of running pods cannot be replaced: that takes a reboot, which leaves no
// state of the former network.
func networkChanges(before, next *config.Config) bool {
	return before != nil && before.Cluster != nil && next.Cluster != nil &&
		before.Cluster.Spec.HasExternal(config.PartNetwork) != next.Cluster.Spec.HasExternal(config.PartNetwork)
}

// storageDryRun returns the disk operations of an apply on a machine without storage. A foreign
// disk may be wiped: checkMachine has checked that the configuration allows it.
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

// load reads the configuration on STATE, else the configuration in the image, else none. An
// unreadable stored configuration is an error and not the same as none: a machine without a
// configuration can be unclaimed, and would accept a pairing with any operator CA.
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
