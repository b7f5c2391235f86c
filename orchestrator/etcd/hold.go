package etcd

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/coreos/go-semver/semver"
	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/pkg/emulation"
)

// A member of an older version does not start in a cluster of a newer version, and etcd's leader
// raises the version of the cluster within seconds when all members run a newer version. While the
// level of the cluster is older, etcd's downgrade holds the cluster at the version of the level:
// the leader does not raise the version of the cluster while a downgrade is enabled, and no member
// migrates its data.
//
// The cluster must never have the newer version: if the trial of the new version failed on the last
// machine, that machine could not roll back. But etcd's own API can enable a downgrade only from
// the present version of the cluster. So this member proposes the downgrade itself, as etcd does
// after its checks.
//
// etcd's leader cancels a downgrade by itself when all members run the older version.

// holdInterval is the time between two steps of a holder.
const holdInterval = 2 * time.Second

// joinSettle is the time for which the version is not held after a member was joining. It covers
// the moment between the removal of a member that failed to start and the next attempt to add the
// member.
const joinSettle = 30 * time.Second

// holder holds the version of etcd at the level of the cluster.
type holder struct {
	server  *etcdserver.EtcdServer
	started emulation.Minor // the level with which the process has started
	joining time.Time       // the last time at which a member was joining
	settled bool            // no later step is possible
}

// hold performs the first step, and repeats it until it succeeds or ctx is done. The machine
// becomes ready after hold returns, because the operator upgrades the next machine as soon as this
// machine is ready.
func (h *holder) hold(ctx context.Context, report func(why string)) error {
	ticker := time.NewTicker(holdInterval)
	defer ticker.Stop()
	for {
		err := h.step(ctx)
		if err == nil {
			return nil
		}
		report("cannot hold the version of etcd: " + err.Error())
		select {
		case <-ticker.C:
		case <-h.server.StoppingNotify():
			return errRemoved
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// run holds the version until no later step is possible, or ctx is done.
func (h *holder) run(ctx context.Context) {
	ticker := time.NewTicker(holdInterval)
	defer ticker.Stop()
	reported := ""
	for !h.settled {
		select {
		case <-ticker.C:
		case <-h.server.StoppingNotify():
			return
		case <-ctx.Done():
			return
		}
		text := ""
		if err := h.step(ctx); err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		if text != "" && text != reported {
			klog.Warningf("etcd: cannot hold the version of the cluster: %s", text)
		}
		reported = text
	}
}

// step performs the next step. All members with a newer version perform the same steps, and each
// step can be repeated.
func (h *holder) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	have, err := readLevel(ctx, v3client.New(h.server))
	if err != nil {
		return err
	}
	adapter := etcdserver.NewServerVersionAdapter(h.server)
	info := adapter.GetDowngradeInfo()
	now := emulation.Etcd{
		Own: minor(version.Version).String(), Members: len(h.server.Cluster().Members()),
		Joining: h.isJoining(time.Now()), Enabled: info.Enabled,
	}
	if info.Enabled {
		now.Target = minor(info.TargetVersion).String()
	}
	wanted := h.wanted(have.level)
	h.settled = have.level.Known() && now.Settled(wanted)
	switch emulation.HoldEtcd(wanted, now) {
	case emulation.Enable:
		target, err := semver.NewVersion(wanted + ".0")
		if err != nil {
			return fmt.Errorf("version %s: %w", wanted, err)
		}
		return adapter.DowngradeEnable(ctx, target)
	case emulation.Cancel:
		return adapter.DowngradeCancel(ctx)
	}
	return nil
}

// isJoining reports whether an added member has not started yet, or had not started a moment ago
// (joinSettle).
func (h *holder) isJoining(now time.Time) bool {
	if slices.ContainsFunc(h.server.Cluster().Members(), func(m *membership.Member) bool { return m.Name == "" }) {
		h.joining = now
	}
	return !h.joining.IsZero() && now.Sub(h.joining) < joinSettle
}

// wanted returns the version of etcd for a stored level. A full database has no stored level,
// because it accepts no writes, but etcd would still raise its version. So wanted then uses the
// level with which the process has started.
func (h *holder) wanted(stored emulation.Minor) string {
	if !stored.Known() {
		stored = h.started
	}
	return emulation.EtcdOf(stored)
}
