package addons

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/leaderelection"
	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// task is an add-on during a round.
type task struct {
	name       string
	addon      *nodespec.Addon // nil: its document was removed
	wanted     Wanted
	record     Record
	stored     *corev1.ConfigMap // nil: not created yet
	state      State             // the previous state
	holdReason string            // reason why nothing is changed
	// rolledBack describes the manifests of the document if wanted holds the previous manifests in
	// their place.
	rolledBack RolledBack
	// lost contains the items to delete whose namespace does not exist any more.
	lost map[key]bool
	// unreadable means that the stored record cannot be decoded. The record stays as it is, because
	// it holds the inventory.
	unreadable bool
}

// reconcileDue reconciles the add-ons that are due, or, if all is true, every add-on. If a record
// cannot be written, the error is returned after the other add-ons were reconciled, and the add-on
// of the record is due again in the next round.
func (m *manager) reconcileDue(ctx context.Context, now time.Time, all bool) error {
	if len(m.all) == 0 {
		_, err := m.client.CoreV1().Namespaces().Get(ctx, Namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) { // there never was an add-on
			m.changed = false
			return nil
		}
		if err != nil {
			return fmt.Errorf("namespace %s: cannot read: %w", Namespace, err)
		}
	} else if err := ensureNamespace(ctx, m.client, Namespace); err != nil {
		return err
	}
	tasks, err := m.tasks(ctx, now)
	if err != nil {
		return err
	}
	granted, problems, err := m.grantRights(ctx, tasks)
	if err != nil {
		return err
	}
	for name := range m.states {
		if !slices.ContainsFunc(tasks, func(t *task) bool { return t.name == name }) {
			delete(m.states, name)
		}
	}
	var failed error
	for _, t := range tasks {
		k, err := m.stateOf(t)
		if err != nil {
			return err
		}
		if granted[t.name] {
			k.granted = now
		}
		if all {
			k.tries = 0
		} else if now.Before(k.next) {
			continue
		}
		err = m.reconcileTask(ctx, t, k, now, problems[t.name])
		if errors.Is(err, errUnavailable) {
			return err
		}
		if err != nil {
			k.next = time.Time{}
			failed = cmp.Or(failed, err)
		}
	}
	m.changed = false
	return failed
}

// stateOf returns the state of an add-on in memory.
func (m *manager) stateOf(t *task) (*addonState, error) {
	if k := m.states[t.name]; k != nil {
		return k, nil
	}
	as, err := impersonate(m.config, t.name, "orlop-addon/"+t.name, m.kinds)
	if err != nil {
		return nil, err
	}
	by, err := impersonate(m.config, remover(t.name), "", m.kinds)
	if err != nil {
		return nil, err
	}
	k := &addonState{reconciler: reconciler{name: t.name, as: as, remover: by, scaled: m.autoscalerExists, applied: map[key]appliedObject{}}, state: t.state}
	m.states[t.name] = k
	return k, nil
}

// tasks returns the tasks of all add-ons with a document or a record.
func (m *manager) tasks(ctx context.Context, now time.Time) ([]*task, error) {
	records, err := m.client.CoreV1().ConfigMaps(Namespace).List(ctx, metav1.ListOptions{LabelSelector: recordLabel})
	if apierrors.IsForbidden(err) { // in a new cluster, this identity does not have the right yet
		records, err = &corev1.ConfigMapList{}, m.grantOwnRights(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("records of add-ons: cannot read: %w", err)
	}
	byName := map[string]*task{}
	var all []*task
	for i := range records.Items {
		t := &task{name: records.Items[i].Name, stored: &records.Items[i]}
		if t.record, t.state, err = decode(t.stored); err != nil {
			t.unreadable = true
			t.holdReason = fmt.Sprintf("%v; the add-on is not reconciled until the record is corrected (kubectl -n %s edit configmap %s) or the ConfigMap is deleted, "+
				"which starts it again: its hooks run again, and objects that its document no longer contains stay", err, Namespace, t.name)
		}
		byName[t.name] = t
		all = append(all, t)
	}
	refreshed := m.hasUnknown() && m.kinds.refresh(now)
	for i := range m.all {
		a := &m.all[i]
		t := byName[a.Name]
		if t == nil {
			t = &task{name: a.Name}
			all = append(all, t)
		}
		t.addon = a
		if t.wanted, err = m.want(*a, refreshed); err != nil {
			return nil, err
		}
		if err := m.chooseManifests(ctx, t, now); err != nil {
			return nil, err
		}
	}
	for _, t := range all {
		if t.addon == nil && !t.unreadable {
			if t.holdReason, err = m.holdReason(ctx, t.record); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// hasUnknown reports whether a wanted or a previous object is of a kind that was unknown when it
// was read.
func (m *manager) hasUnknown() bool {
	for _, w := range m.wanted {
		if len(w.Unknown) > 0 {
			return true
		}
	}
	for _, c := range m.previousByName {
		if len(c.wanted.Unknown) > 0 {
			return true
		}
	}
	return false
}

// want returns the wanted objects of an add-on. It reads them once after each change of the
// documents' file, and again while a kind is unknown or the artifact cannot be read. While the
// artifact cannot be read, the wanted objects are unknown, so the existing objects stay as they
// are.
func (m *manager) want(a nodespec.Addon, refreshed bool) (Wanted, error) {
	if w, before := m.wanted[a.Name]; before && (len(w.Unknown) == 0 || !refreshed) {
		return w, nil
	}
	files, err := m.files(a)
	if err != nil {
		return Wanted{Refused: []string{"artifact: " + err.Error()}}, nil
	}
	m.kinds.failed = nil
	w := Read(a, files, m.kinds.lookup)
	if m.kinds.failed != nil {
		return w, fmt.Errorf("kinds of the API server: %w", m.kinds.failed)
	}
	why, err := m.versionProblem(a)
	if err != nil {
		return w, err
	}
	if why != "" {
		w.Refused = append([]string{why}, w.Refused...)
	}
	m.wanted[a.Name] = w
	return w, nil
}

// files returns the files of an add-on's artifact.
func (m *manager) files(a nodespec.Addon) ([]artifact.Text, error) {
	switch {
	case a.Artifact == (nodespec.Artifact{}):
		return nil, nil
	case a.Artifact.Missing != "":
		return nil, errors.New(a.Artifact.Missing)
	}
	files, err := m.artifacts.Texts(a.Artifact.SHA256)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.Artifact.Name, err)
	}
	return files, nil
}

// errOwnRightsPending is returned when the rights of this package itself are being granted.
var errOwnRightsPending = errors.New("the rights to store records are being granted")

// grantOwnRights gives this package's own identity its rights in Namespace.
func (m *manager) grantOwnRights(ctx context.Context) error {
	want, err := presentRBAC(ctx, m.client)
	if err != nil {
		return err
	}
	own := rbacFor([]Grant{ownGrant()})
	maps.Copy(want.roles, own.roles)
	maps.Copy(want.bindings, own.bindings)
	_, failed, err := applyRBAC(ctx, m.client, want)
	for _, refused := range failed {
		err = refused
	}
	if err != nil {
		return err
	}
	return errOwnRightsPending
}

// versionProblem returns the reason why an add-on needs another version of the API server, or the
// empty string.
func (m *manager) versionProblem(a nodespec.Addon) (string, error) {
	if a.Kubernetes == "" {
		return "", nil
	}
	info, err := m.client.Discovery().ServerVersion()
	if err != nil {
		return "", fmt.Errorf("version of the API server: %w", err)
	}
	have, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return "", fmt.Errorf("version of the API server: %w", err)
	}
	least, err := version.ParseGeneric(a.Kubernetes)
	if err != nil {
		return "", fmt.Errorf("add-on %s: cannot parse the required version: %w", a.Name, err)
	}
	if have.AtLeast(least) {
		return "", nil
	}
	return fmt.Sprintf("needs Kubernetes >=%s, but the API server is %s; nothing of it is applied", a.Kubernetes, info.GitVersion), nil
}

// holdReason returns the reason why an add-on without a document is left as it is: the documents of
// another machine contained it, and may still contain it. Operators configure machines one after
// the other, and the leader can change meanwhile.
func (m *manager) holdReason(ctx context.Context, r Record) (string, error) {
	if !leaderelection.NeedsElection(m.spec) || r.Node == m.spec.Node.Name || r.Node == "" {
		return "", nil
	}
	_, err := m.client.CoreV1().Nodes().Get(ctx, r.Node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("Node %s: cannot read: %w", r.Node, err)
	}
	return fmt.Sprintf("%s has applied it, but the configuration of the present leader %s does not contain it; "+
		"configure the same add-ons on all control-plane machines; to remove this add-on, add it to %s and remove it again",
		r.Node, m.spec.Node.Name, m.spec.Node.Name), nil
}

// grantRights grants the add-ons their rights, and revokes unused rights. The map granted is true
// for add-ons with new rights. The map problems contains the problems of single add-ons.
func (m *manager) grantRights(ctx context.Context, tasks []*task) (granted map[string]bool, problems map[string]string, err error) {
	all := []Grant{ownGrant()}
	granted, problems = map[string]bool{}, map[string]string{}
	ofTask := map[string][]Grant{}
	for _, t := range tasks {
		if t.addon != nil && len(t.wanted.Refused) == 0 {
			for _, namespace := range t.namespaces() {
				if err := ensureNamespace(ctx, m.client, namespace); err != nil {
					problems[t.name] = err.Error()
				}
			}
			if problems[t.name] == "" {
				ofTask[t.name] = Rights(*t.addon)
			}
		}
		items, lost, err := m.reachable(ctx, t.toDelete())
		if err != nil {
			return nil, nil, err
		}
		t.lost = lost
		ofTask[t.name] = append(ofTask[t.name], Removing(t.name, items)...)
		all = append(all, ofTask[t.name]...)
	}
	changed, failed, err := applyRBAC(ctx, m.client, rbacFor(all))
	own := ownGrant()
	for _, t := range tasks {
		// a change of the grant by which this package impersonates all add-ons concerns every
		// add-on
		granted[t.name] = changed[[2]string{own.Namespace, own.Name}]
		for _, g := range ofTask[t.name] {
			at := [2]string{g.Namespace, g.Name}
			granted[t.name] = granted[t.name] || changed[at]
			if why := failed[at]; why != nil {
				problems[t.name] = why.Error()
			}
		}
	}
	return granted, problems, err
}

// namespaces returns the namespaces that must exist for an add-on. It omits its default namespace
// if the add-on itself contains that namespace, and the namespace default.
func (t *task) namespaces() []string {
	if len(t.addon.Namespaces) > 0 {
		return t.addon.Namespaces
	}
	own := slices.ContainsFunc(t.wanted.Objects, func(o Object) bool { return o.Group == "" && o.Kind == "Namespace" && o.Name == t.addon.Namespace })
	if own || t.addon.Namespace == metav1.NamespaceDefault {
		return nil
	}
	return []string{t.addon.Namespace}
}

// toDelete returns the items that the add-on must delete: objects that are no longer wanted, and
// hooks that run again.
func (t *task) toDelete() []Item {
	if t.holdReason != "" || len(t.wanted.Refused) > 0 {
		return nil
	}
	var items []Item
	if len(t.wanted.Unknown) == 0 { // objects of unknown kinds would seem to be unwanted
		items = ToPrune(t.record.Inventory, t.wanted.Objects)
	}
	if t.record.Finished == t.wanted.Digest {
		return items
	}
	for _, o := range t.wanted.Objects {
		if len(o.Hook.events) > 0 && slices.ContainsFunc(t.record.Inventory, func(i Item) bool { return i.key() == o.key() }) {
			items = append(items, o.Item)
		}
	}
	return items
}

// reachable returns the items in existing namespaces. A missing namespace has no objects, and no
// rights can be granted in it. The result lost contains the items in missing namespaces.
func (m *manager) reachable(ctx context.Context, items []Item) (all []Item, lost map[key]bool, err error) {
	there := map[string]bool{"": true}
	lost = map[key]bool{}
	for _, i := range items {
		exists, known := there[i.Namespace]
		if !known {
			_, err := m.client.CoreV1().Namespaces().Get(ctx, i.Namespace, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, nil, fmt.Errorf("namespace %s: cannot read: %w", i.Namespace, err)
			}
			exists = err == nil
			there[i.Namespace] = exists
		}
		if exists {
			all = append(all, i)
		} else {
			lost[i.key()] = true
		}
	}
	return all, lost, nil
}

// reconcileTask makes a pass over one add-on and writes the result.
func (m *manager) reconcileTask(ctx context.Context, t *task, k *addonState, now time.Time, problem string) error {
	r := t.record
	save := func(r Record) error { return m.store(ctx, t, r, k.state) }
	var out outcome
	var err error
	switch {
	case t.holdReason != "":
		out.problems, out.objects = []string{t.holdReason}, len(t.wanted.Objects)
	case problem != "":
		out.problems = []string{problem}
	default:
		if t.addon != nil {
			r.Node = m.spec.Node.Name
		}
		fromDocument := t.addon != nil && t.rolledBack == (RolledBack{})
		k.canRollBack = fromDocument && t.addon.Within > 0
		r = r.without(t.lost)
		r, out, err = k.pass(ctx, t.wanted, r, now, save)
		if err == nil && fromDocument {
			r, out = m.evaluateTrial(ctx, t, k, r, out, now)
		}
	}
	if t.rolledBack != (RolledBack{}) {
		out.problems = append([]string{t.rolledBack.problem(t.name, out.complete && err == nil)}, out.problems...)
	}
	if err != nil {
		if !errors.Is(err, errUnavailable) {
			return err
		}
		out.problems = append(out.problems, err.Error())
	}
	// grantRights has revoked the rights of the add-on, because nothing is left to delete
	if t.addon == nil && len(t.record.Inventory) == 0 && !t.unreadable {
		return m.deleteRecord(ctx, t, r)
	}
	k.state = t.nextState(out, r, k.state, now)
	if k.state.Phase == Ready {
		k.tries, k.next = 0, now.Add(resyncPeriod)
	} else {
		k.tries++
		most := resyncPeriod
		if len(out.problems) > 0 {
			most = maxBackoff
		}
		k.next = now.Add(delay(k.tries, most))
	}
	if t.unreadable {
		return nil
	}
	return m.store(ctx, t, r, k.state)
}

// nextState returns the state of an add-on after a pass.
func (t *task) nextState(out outcome, r Record, before State, now time.Time) State {
	s := State{Phase: Ready, Objects: out.objects, Healthy: out.healthy, Rights: before.Rights, Problems: shorten(append(slices.Clone(out.problems), out.waits...))}
	switch {
	case len(out.problems) > 0:
		s.Phase = Failed
	case t.addon == nil:
		s.Phase = Pruning
	case len(out.waits) > 0:
		s.Phase = Applying
	}
	if t.addon == nil {
		s.Objects = len(r.Inventory)
	} else {
		s.Rights = describeRights(*t.addon)
	}
	s.Notes = append(slices.Clone(t.wanted.Notes), out.notes...)
	for _, kept := range r.Orphaned {
		s.Notes = append(s.Notes, kept.Object+": stays, because "+kept.Reason)
	}
	s.Since = now.UTC().Truncate(time.Second)
	if s.Phase == before.Phase {
		s.Since = before.Since
	}
	return s
}

// store writes the record and the state of an add-on, if they have changed.
func (m *manager) store(ctx context.Context, t *task, r Record, s State) error {
	want, err := encode(t.name, r, s)
	if err != nil {
		return err
	}
	all := m.client.CoreV1().ConfigMaps(Namespace)
	if t.stored == nil {
		if t.stored, err = all.Create(ctx, want, metav1.CreateOptions{}); err != nil {
			t.stored = nil
			return fmt.Errorf("record of the add-on %s: cannot create: %w", t.name, asUnavailable(err))
		}
		return nil
	}
	if maps.Equal(t.stored.Data, want.Data) {
		return nil
	}
	want.ResourceVersion = t.stored.ResourceVersion
	stored, err := all.Update(ctx, want, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("record of the add-on %s: cannot write: %w", t.name, asUnavailable(err))
	}
	t.stored = stored
	return nil
}

// deleteRecord deletes the record of an add-on without remaining objects.
func (m *manager) deleteRecord(ctx context.Context, t *task, r Record) error {
	for _, kept := range r.Orphaned {
		klog.InfoS("An object of a removed add-on stays", "addon", t.name, "object", kept.Object, "because", kept.Reason)
	}
	if t.stored != nil {
		if err := m.deleteManifests(ctx, t.name); err != nil {
			return err
		}
		err := m.client.CoreV1().ConfigMaps(Namespace).Delete(ctx, t.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &t.stored.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("record of the add-on %s: cannot delete: %w", t.name, asUnavailable(err))
		}
	}
	klog.InfoS("An add-on was removed", "addon", t.name)
	delete(m.states, t.name)
	return nil
}
