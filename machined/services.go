package main

import (
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Names of the services in the API.
const (
	serviceApid        = nodeplan.ServiceApid
	serviceContainerd  = nodeplan.ServiceContainerd
	serviceKubeAPI     = nodeplan.ServiceKubeAPI
	serviceControllers = nodeplan.ServiceControllers
	serviceNode        = nodeplan.ServiceNode
)

// apidPort is the port of apid.
const apidPort = paths.PortApid
