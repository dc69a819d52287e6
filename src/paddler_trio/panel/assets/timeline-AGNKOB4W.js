import{E as i,R as t,x as e}from"./chunk-74RGZPHY.js";function o(){return e(t,{title:"Timeline",children:e(i,{icon:"timeline",title:"Nothing to show"})})}export{o as default};
