package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeapiserver"
	"github.com/orlop-os/orlop/orchestrator/leaderelection"
	"github.com/orlop-os/orlop/orchestrator/machines/overview"
	"github.com/orlop-os/orlop/orchestrator/scheduler"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// parts describes the components of a cluster for the objects of kind Component. Its sources are
// the table of components and the specification of a control-plane machine.
func parts(spec nodespec.Spec, dirs dirs.Dirs) ([]overview.Part, error) {
	worker := spec
	worker.Node.ControlPlane = false
	onControlPlane, onWorkers := Services(spec, dirs), Services(worker, dirs)
	contains := func(all []component.Component, c component.Component) bool {
		return slices.ContainsFunc(all, func(o component.Component) bool { return o.Process == c.Process && o.Name == c.Name })
	}
	var all []overview.Part
	for _, c := range onControlPlane {
		p := overview.Part{Name: c.Name, Process: c.Process, RunsOn: overview.ControlPlane, Kubernetes: strings.HasPrefix(c.Name, "kube")}
		switch {
		case c.Run != nil: // a placeholder (component.External)
			p.RunsOn = overview.External
		case contains(onWorkers, c):
			p.RunsOn = overview.All
		case leaderelection.NeedsElection(spec) && needsLead(c):
			p.RunsOn = overview.Leader
		}
		extensions, err := extensionsOf(c, dirs)
		if err != nil {
			return nil, err
		}
		p.Extensions = extensions
		all = append(all, p)
	}
	for _, c := range onWorkers {
		if !contains(onControlPlane, c) {
			all = append(all, overview.Part{Name: c.Name, Process: c.Process, RunsOn: overview.Workers})
		}
	}
	return all, nil
}

// extensionsOf returns the extension points of a component that are known without a request to the
// API server.
func extensionsOf(c component.Component, dirs dirs.Dirs) (all []machineapi.Extension, err error) {
	switch c.Name {
	case kubeapiserver.Name:
		for _, name := range kubeapiserver.AdmissionPlugins(c.Args) {
			e := machineapi.Extension{Point: overview.PointAdmission, Name: name, Source: overview.BuiltIn}
			if kubeapiserver.IsOwnPlugin(name) {
				e.Detail = "of Orlop OS"
			}
			all = append(all, e)
		}
	case scheduler.Name:
		profiles, extenders, err := scheduler.Plugins(scheduler.ConfigFile(dirs))
		if err != nil {
			return nil, err
		}
		for _, p := range profiles {
			for _, plugin := range p.Plugins {
				e := machineapi.Extension{Point: overview.PointScheduling, Name: plugin.Name, Source: overview.BuiltIn, Detail: "profile " + p.Name}
				if plugin.Weight > 0 {
					e.Detail += fmt.Sprintf(", weight %d", plugin.Weight)
				}
				all = append(all, e)
			}
		}
		for _, url := range extenders {
			all = append(all, machineapi.Extension{Point: overview.PointScheduling, Name: url, Source: overview.Configuration, Detail: "extender"})
		}
	}
	return all, nil
}

// addonStates returns the add-ons for the objects Component.
func (w *wiring) addonStates() (all []overview.Addon) {
	states, _ := w.controllers.addons.Get()
	for _, s := range states {
		all = append(all, overview.Addon{Name: s.Name, Ready: s.Ready, Line: s.Line})
	}
	return all
}
