package main

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/orlop-os/orlop/machined/debug"
	"github.com/orlop-os/orlop/machined/etcd"
	"github.com/orlop-os/orlop/machined/images"
	"github.com/orlop-os/orlop/machined/logship"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// assemble makes machined's packages, each from its Deps.
func assemble(m *machine) {
	m.members = membership.New(memberDeps(m)) // first, because the others use it
	m.debug = newDebug(m)
	m.etcd = newEtcd(m)
	m.images = newImages(m)
	m.logShipping = newLogShipping(m)
	m.pairing = newPairing(m)
}

func newDebug(m *machine) *debug.Tools {
	return debug.New(debug.Deps{
		Stopping:    m.runCtx.Done(),
		Services:    m.services.Services,
		Run:         m.reaper.RunCommand,
		LoadModules: m.kernel.LoadModules,
		Started:     func() (time.Time, error) { s, err := m.kernel.ReadSystem(); return s.Started, err },
		Event:       m.events.add,
		Console:     m.logConsole,
	})
}

func newEtcd(m *machine) *etcd.Manager {
	d := etcd.Deps{
		Config:      cell.Map(m.config, func(now applied) etcd.Config { return etcd.Config{Config: now.config, OnTrial: !now.trial.IsZero()} }),
		Started:     m.started,
		Stopping:    m.runCtx,
		Command:     m.orchestrator,
		ReadCommand: m.readOrchestrator,
		Services:    m.services,
		LockUpgrade: func() (unlock func(), ok bool) {
			if !m.writeMu.TryLock() {
				return nil, false
			}
			return m.writeMu.Unlock, true
		},
		UpgradePending: func() error { now, _ := m.upgrade.Get(); return now.Undecided() },
		FreeSpace:      func() (int64, error) { return upgrade.FreeSpace(paths.Data) },
		DataReplaced:   m.members.NodeGC.RestartAll,
		NameInUse:      m.members.NodeGC.Reassigned,
		DeleteNodes:    m.members.NodeGC.Delete,
		Event:          m.events.add,
	}
	if m.bootMedium != "" {
		d.NotInstalled = notInstalled
	}
	return etcd.New(d)
}

func newImages(m *machine) *images.Manager {
	return images.New(images.Deps{
		Containerd: m.containerd,
		Running: cell.Map(m.services.Status(), func(list []supervise.Status) bool {
			i := slices.IndexFunc(list, func(s supervise.Status) bool { return s.Name == nodeplan.ServiceContainerd })
			return i >= 0 && list[i].State == supervise.Running
		}),
		Config: cell.Map(m.config, func(now applied) images.Config {
			return images.Config{Config: now.config, OnTrial: !now.trial.IsZero()}
		}),
		UpgradePending: func() bool { now, _ := m.upgrade.Get(); return now.Undecided() != nil },
		PauseImage:     func() string { return m.release.PauseImage },
		Imported:       func() { m.mark("images") },
		Peers:          func() []netip.Addr { now, _ := m.config.Get(); return m.members.Peers.Others(now.config) },
		Call:           m.members.Peers.Call,
		Dial: func(ctx context.Context, addr netip.Addr) (*client.Client, error) {
			c, _, err := m.members.Peers.Dial(ctx, addr)
			return c, err
		},
		Serve:    m.serve,
		Stopping: m.runCtx,
		Event:    m.events.add,
	})
}

func newLogShipping(m *machine) *logship.Shipper {
	return logship.New(logship.Deps{
		Config: cell.Map(m.config, func(now applied) logship.Config {
			if now.config == nil {
				return logship.Config{}
			}
			return logship.Config{Machine: now.config.Machine.Metadata.Name, Receivers: now.config.Machine.Spec.Logging.Receivers}
		}),
		Dir: func() string {
			if why, _ := m.storageProblem.Get(); why != "" {
				return ""
			}
			return paths.LogShipping
		},
		AuditLogs: func() (changes, refused *audit.Log) { return m.callRecords.changes, m.callRecords.refused },
		Events: logship.Events{
			Newest: func() uint64 { last, _ := m.events.last.Get(); return last },
			Tail: func(ctx context.Context, after uint64, each func(logship.Event) error) error {
				return m.events.tail(ctx, after, true, func(e event) error {
					return each(logship.Event{Number: e.cursor, Time: e.time, Source: e.source, Kind: e.kind, Message: e.message})
				})
			},
		},
		Services:  m.services,
		Restarter: m.restarter(),
		Event:     func(kind, message string) { m.events.add("log-shipping", kind, message) },
	})
}

func newPairing(m *machine) *ownership.Pairing {
	return ownership.New(ownership.Deps{
		Lock: func() (unlock func(), busy string) {
			if !m.applyMu.TryLock() {
				return nil, "a configuration is being applied; try again"
			}
			if !m.writeMu.TryLock() {
				m.applyMu.Unlock()
				return nil, "the machine is being installed, and reboots then; pair with it afterwards"
			}
			m.reconcileMu.Lock()
			return func() {
				m.reconcileMu.Unlock()
				m.writeMu.Unlock()
				m.applyMu.Unlock()
			}, ""
		},
		Config:     func() (*config.Config, string) { now, _ := m.config.Get(); return now.config, now.source },
		Unreadable: func(c *config.Config) bool { return c == nil && m.bootMedium == "" && hasStoredConfig() },
		Stored:     func() bool { why, _ := m.storageProblem.Get(); return why == "" },
		Activate: func(ctx context.Context, c *config.Config) error {
			state, _ := m.networkState.Get()
			return m.configureAPI(ctx, c, state)
		},
		Record:        m.record,
		RecordRefused: m.recordRefused,
		Event:         func(kind, message string) { m.events.add("pairing", kind, message) },
		Console:       m.logConsole,
	})
}
