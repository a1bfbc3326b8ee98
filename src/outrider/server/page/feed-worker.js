import{l as s}from"./chunk-5K374BOG.js";import"./chunk-OOJM4CTU.js";var c=new s;self.onconnect=o=>{let n=o.ports[0],t=c.subscribe(e=>n.postMessage(e));n.onmessage=e=>t(e.data)};
