package machines

import (
	"context"
	"fmt"

	"github.com/google/renameio/v2"
	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/machines/claims"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

// passClaims performs the changes of claims.Plan and writes the list of claims for machined. If a
// change claims a host or deletes a Machine, passClaims reads the objects from the API server and
// calls Plan again. With stale caches, a set could claim or delete too many machines.
func (c *controller) passClaims(ctx context.Context, s Snapshot, listing inventory.Listing) error {
	if c.sets == nil || s.Cluster == nil {
		return nil
	}
	in := claims.Snapshot{
		Now: s.Now, Cluster: s.Cluster, Listing: listing, Machines: s.Machines, Own: s.Own,
		Deployments: component.Objects[*clusterv1.MachineDeployment](c.deployments), Sets: component.Objects[*clusterv1.MachineSet](c.sets),
		Templates: component.Objects[*machineapi.OrlopMachineTemplate](c.templates), Hosts: component.Objects[*machineapi.OrlopHost](c.hosts),
		Rules: component.Objects[*machineapi.OrlopApprovalRule](c.rules), Demand: c.demand.verdicts,
	}
	for _, n := range component.Objects[*corev1.Node](c.nodes) {
		in.Nodes = append(in.Nodes, n.Name)
	}
	result := claims.Plan(in)
	if result.Decides {
		if err := c.freshClaims(ctx, &in); err != nil {
			return fmt.Errorf("cannot read the claims: %w", err)
		}
		result = claims.Plan(in)
	}
	list, err := result.List.Encode()
	if err == nil {
		// The file needs no flush to disk, because its directory is in memory.
		err = renameio.WriteFile(c.claimsFile, list, 0o600)
	}
	if err != nil {
		return err
	}
	return perform(result.Changes, func(change claims.Change) error { return c.later.doClaim(ctx, change) })
}

// freshClaims replaces the objects on which a claim or a deletion depends by the objects in the API
// server.
func (c *controller) freshClaims(ctx context.Context, in *claims.Snapshot) error {
	var err error
	if in.Sets, err = list(ctx, c.later.sets); err != nil {
		return err
	}
	if in.Hosts, err = list(ctx, c.later.hosts); err != nil {
		return err
	}
	if in.Own, err = list(ctx, c.later.own); err != nil {
		return err
	}
	all, err := list(ctx, c.later.machines)
	in.Machines = c.ofCluster(all)
	return err
}
